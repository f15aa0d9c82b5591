"""Writing the kernel for groups whose output channels are one vector: tiles that sweep over image columns.

With so few channels every product needs a value of its own, and loads are as many as products. A tile
that goes from image column to image column loads a value once for all kernel columns, and a weight
once for all of its rows: 12 loads for 27 products of a kernel three columns wide, where the window
kernel has 17 for 16.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.conv.layout.function import convolve_function, number_names, sum_dtype
from shorthaul.conv.layout.weights import BundledPanels
from shorthaul.conv.layout.workspace import (
    Workspace,
    columns_under,
    even_part,
    find_largest,
    share_rows,
)
from shorthaul.conv.methods.base import SPECIALIZED_FLOPS, ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.text import emit_preamble, emit_sizes_and_shape
from shorthaul.conv.problem.geometry import KernelShape, Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import CppSource

# Kernels of more columns have tiles of so few rows that their weights are loaded too often.
SWEEP_COLUMNS = 5
# Packed columns of a block: beside its outputs they stay in the second-level cache (38 to 128 KiB took the same
# time on contiguous images; channels last, 128 took 5 % longer).
SWEEP_BYTES = 72 * 1024


WORKSPACE = Workspace(columns="int32_t", offsets="int64_t", stage="real", packed="real")


class SweepNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    block_rows: int
    block_columns: int
    block_bundles: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class SweepKernel:
    """Everything that decides the text of a sweep kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output rows
    shape: KernelShape
    bundled: int = 1  # groups that share a vector


def emit_sweep_kernel(kernel: SweepKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(SweepNumbers._fields[:-1], kernel.shape)
    function = convolve_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/sweep_block"),
        workspace=WORKSPACE,
    )
    shape, dtype = kernel.shape, str(kernel.dtype).removeprefix("torch.")
    lanes = kernel.machine.lanes(sum_dtype(kernel.dtype).itemsize)
    template = (
        shape.kernel[2],
        shape.kernel[1],
        shape.in_channels,
        kernel.bundled,
        shape.stride[1],
        shape.dilation[1],
    )
    further = "" if kernel.bundled == 1 else f" of {kernel.bundled} groups in turn"
    text = f"""\
// Convolution in groups of {shape.out_channels} output channels: {shape.describe()}, {dtype},
// {"channels last" if kernel.channels_last else "contiguous"}. Register tile: {kernel.rows} output rows x {shape.kernel[2]} outputs that share an image column x {lanes} output channels{further}
// for {kernel.machine.name}. Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows};
using Block = SweepBlock<Value, Activation, channels_last, {", ".join(map(str, template))}>;
constexpr int64_t bundled = {kernel.bundled};

{function.prototype()} {{
{emit_sizes_and_shape(names, shape)}
{_LOOPS}}}
"""
    return CppSource(f"conv_sweep_{shape.describe()}", text, (function,))


_LOOPS = """\
  const int64_t row_blocks = (out_h + block_rows - 1) / block_rows;
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t bundles = shape.groups / bundled, bundle_blocks = (bundles + block_bundles - 1) / block_bundles;
  const int64_t tasks = batch * out_d * row_blocks * column_blocks * bundle_blocks;

  // A task is a block of outputs of a few bundles of groups of one image.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    Block block(Workspace(workspace + thread * thread_bytes, places), block_columns, shape, sizes);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const GroupTask at = find_group_task<channels_last>(task, tasks / batch, bundle_blocks);
      const int64_t place = at.place, row_block = place / column_blocks;
      const Span some = even_part(bundles, block_bundles, at.group);
      const Span rows = even_part(out_h, block_rows, row_block % row_blocks);
      block.pack(input, row_block / row_blocks, rows, place % column_blocks, some);

      // Tiles of rows, then bundles; each sweeps over the columns of the block.
      balanced_tiles(rows.end - rows.begin, tile_rows, [&](int64_t row, int64_t size) {
        with_constant<tile_rows>(size, [&](auto tile) {
          const real* strip = block.packed;
          for (int64_t bundle = some.begin; bundle < some.end; ++bundle, strip += block.strip()) {
            block.template run_tile<tile>(strip, row, bundle, weights + bundle * shape.window_values() * lanes,
                                          bias == nullptr ? nullptr : bias + bundle * lanes, residual, output);
          }
        });
      });
    }
  });
"""


def count_bundled(task: WindowTask) -> int:
    """Groups that share a vector of the sweep kernel: two whose outputs are half of one each, or one alone."""
    is_half = 2 * task.shape.out_channels == this_machine().lanes(task.sum_bytes)
    return 2 if is_half and task.shape.groups % 2 == 0 and task.sum_bytes == 4 else 1


def sweep_machine(task: WindowTask) -> VectorMachine:
    """The vectors that the sweep kernel has for `task`: half of AVX-512's where a group's outputs fill no more."""
    machine = this_machine()
    outputs = count_bundled(task) * task.shape.out_channels
    is_half = 2 * outputs <= machine.lanes(task.sum_bytes)
    return machine.halved() if is_half and machine.vector_bytes == 64 else machine


def bundles_together(task: WindowTask) -> int:
    """Bundles of groups that the sweep kernel packs at once: those that share cache lines of a channels-last image."""
    bundled = count_bundled(task)
    channels = bundled * task.shape.in_channels
    sharing = 64 // task.dtype.itemsize // channels if task.channels_last else 1
    return max(1, min(sharing, task.shape.groups // bundled))


def plan_sweep(task: WindowTask, schedule: ConvSchedule, threads: int) -> SweepNumbers:
    """Cut the outputs of one bundle of groups into blocks whose packed columns fit the schedule's strips."""
    shape, value_bytes = task.shape, task.sum_bytes
    budget = schedule.strip_bytes or SWEEP_BYTES
    height, width = task.out_sizes[1:]

    def packed_bytes(rows: int, columns: int) -> int:
        band = (rows - 1) * shape.stride[1] + (shape.kernel[1] - 1) * shape.dilation[1] + 1
        channels = count_bundled(task) * shape.in_channels
        column_bytes = (-(-band * channels * value_bytes // 64) | 1) * 64
        return bundles_together(task) * columns_under(task, columns) * column_bytes

    least = min(height, schedule.rows)
    columns = even_part(
        width, find_largest(1, width, lambda each: packed_bytes(least, each) <= budget)
    )
    most = find_largest(least, height, lambda each: packed_bytes(each, columns) <= budget)
    others = task.batch * task.out_sizes[0] * -(-width // columns)
    others *= -(-shape.groups // count_bundled(task) // bundles_together(task))
    rows = share_rows(height, even_part(height, most), most, others, 1, threads)
    lanes = sweep_machine(task).lanes(value_bytes)
    carved = WORKSPACE.carve(
        value_bytes,
        columns=columns_under(task, columns),
        offsets=columns,
        stage=columns * schedule.rows * lanes,
        packed=packed_bytes(rows, columns) // value_bytes,
    )
    return SweepNumbers(carved.thread_bytes, rows, columns, bundles_together(task), carved.places)


def can_sweep(task: WindowTask) -> bool:
    """Whether the sweep kernel computes `task`: outputs of one or two groups are a vector, windows overlap by columns."""
    shape = task.shape
    return (
        count_bundled(task) * shape.out_channels == sweep_machine(task).lanes(task.sum_bytes)
        and shape.in_channels > 1
        and shape.kernel[0] == shape.stride[2] == shape.dilation[2] == 1
        and 2 <= shape.kernel[2] <= SWEEP_COLUMNS
    )


def prefers_sweep(task: WindowTask) -> bool:
    """Whether the sweep kernel is taken without measuring: tiles of nine rows, and work that is worth compiling for.

    Measured with 8 channels per group on AVX-512: 1.3 ms where planes took 1.7 and the grouped kernel 1.9 (256
    channels, 56x56). One group of a contiguous image is transposed less often as planes (64 to 8 channels, 112x112:
    1.4 ms, 1.5 by sweeps). Sixteen registers hold four rows; there it is left to the tuner.
    """
    is_specialized = task.flops >= SPECIALIZED_FLOPS
    is_suited = task.channels_last or task.shape.groups > 1
    return is_specialized and is_suited and this_machine().registers > 16 and can_sweep(task)


def sweep_schedule(task: WindowTask) -> ConvSchedule:
    """The schedule of the sweep kernel: sums, the weights of a kernel row and one value fill the registers."""
    columns = task.shape.kernel[2]
    rows = (this_machine().registers - 1) // columns - 1
    return ConvSchedule("sweep", rows, 1, strip_bytes=SWEEP_BYTES)


class Sweep(Method):
    """Tiles that sweep over image columns, for groups whose outputs are one vector or half of one."""

    name = "sweep"
    emit = staticmethod(emit_sweep_kernel)
    schedule = staticmethod(sweep_schedule)
    prefers = staticmethod(prefers_sweep)
    applies = staticmethod(can_sweep)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Bundled weights are panels of the groups of a bundle, one for each output channel of a group."""
        machine, bundled = sweep_machine(task), count_bundled(task)
        kernel = SweepKernel(
            task.dtype,
            task.channels_last,
            task.activation,
            machine,
            schedule.rows,
            task.shape,
            bundled,
        )
        panel = machine.lanes(task.sum_bytes) if bundled == 1 else bundled
        real = sum_dtype(task.dtype)
        weights = BundledPanels(task.shape, real, panel, panel, taps, bundled=bundled)
        return KernelPlan(task, kernel, plan_sweep(task, schedule, threads), weights, kernel.shape)
