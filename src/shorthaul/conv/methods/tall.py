"""Writing the tall kernel: depthwise convolutions whose kernels are eight rows high or more.

One vector of channels is packed at a time, so that rows and pixels lie close together however many channels
there are. Image rows and kernel columns that are zero padding are left out. Its loops need no constants of the
shape, so one kernel serves every shape.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.conv.layout.function import convolve_function, number_names, sum_dtype
from shorthaul.conv.layout.weights import ChannelPanels
from shorthaul.conv.layout.workspace import Workspace, columns_under, even_part, share_rows
from shorthaul.conv.methods.base import ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.text import emit_preamble, emit_sizes_and_shape
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, second_level_cache_bytes, this_machine
from shorthaul.jit import CppSource

# Kernels of fewer rows are left to the sliding kernel.
TALL_ROWS = 8
# Packed rows of one vector of channels, at most: half of a second-level cache of 1 MiB.
TALL_BYTES = 512 * 1024


WORKSPACE = Workspace(columns="int32_t", offsets="int64_t", stage="real", band="real")


class TallNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    block_rows: int
    block_columns: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class TallKernel:
    """Everything that decides the text of a tall kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output rows
    pixels: int  # of the register tile: neighboring outputs


def emit_tall_kernel(kernel: TallKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(TallNumbers._fields[:-1], None)
    function = convolve_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/tall_block"),
        workspace=WORKSPACE,
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    layout = "channels_last" if kernel.channels_last else "contiguous"
    text = f"""\
// Depthwise convolution, {kernel.rows} rows high or more: any shape, {dtype}, {layout}.
// Register tile: {kernel.rows} output rows x {kernel.pixels} vectors of channels for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row) in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows}, tile_pixels = {kernel.pixels};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_LOOPS}}}
"""
    return CppSource(f"conv_tall_{dtype}_{layout}", text, (function,))


_LOOPS = """\
  const int64_t vectors = (shape.groups + lanes - 1) / lanes;
  const int64_t row_blocks = (out_h + block_rows - 1) / block_rows;
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t tasks = batch * out_d * vectors * row_blocks * column_blocks;
  // A task is a block of outputs of one vector of channels of one image.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    TallBlock<Value, Activation, channels_last, tile_rows, tile_pixels> block(
        Workspace(workspace + thread * thread_bytes, places), block_columns, shape, sizes);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      // Vectors of channels share pages, and pairs of cache lines: they follow each other.
      const int64_t vector = task % vectors, place = task / vectors, row_block = place / column_blocks;
      const Span rows = even_part(out_h, block_rows, row_block % row_blocks);
      const Span columns = even_part(out_w, block_columns, place % column_blocks);
      block.pack(input, row_block / row_blocks, vector, rows, columns);
      block.run(weights + vector * shape.window_values() * lanes, bias == nullptr ? nullptr : bias + vector * lanes,
                residual, output);
    }
  });
"""


def plan_tall(task: WindowTask, schedule: ConvSchedule, threads: int) -> TallNumbers:
    """Cut the outputs of one vector of channels into blocks whose image rows fit the schedule's strips."""
    lanes = this_machine().lanes(task.sum_bytes)
    vector_bytes, budget = lanes * task.sum_bytes, schedule.strip_bytes or TALL_BYTES
    height, width = task.out_sizes[1:]
    above = task.shape.kernel[1] - 1

    def row_bytes(columns: int) -> int:
        return (-(-columns_under(task, columns) * vector_bytes // 64) | 1) * 64

    def most_rows(columns: int) -> int:
        fitting = budget // row_bytes(columns) - above
        return even_part(height, max(min(height, schedule.rows), min(height, fitting)))

    def packed_share(columns: int) -> float:
        rows = most_rows(columns)
        return (rows + above) * columns_under(task, columns) / (rows * columns)

    # Rows and columns at the edges of a block are packed again by its neighbor: of the widths, the one
    # that packs the fewest values per output, the widest of equals.
    least = min(width, schedule.vectors)
    widths = {even_part(width, max(least, width >> halvings)) for halvings in range(16)}
    fitting = [
        each for each in widths if (most_rows(each) + above) * row_bytes(each) <= budget
    ] or [min(widths)]
    columns = min(sorted(fitting, reverse=True), key=packed_share)
    planes = task.batch * task.out_sizes[0] * -(-task.shape.groups // lanes)
    others, most = planes * -(-width // columns), most_rows(columns)
    # A block per thread, as long as it still fills a tile.
    wanted = min(most, max(schedule.rows, -(-height // -(-threads // others))))
    rows = share_rows(height, wanted, most, others, 1, threads)
    carved = WORKSPACE.carve(
        task.sum_bytes,
        columns=columns_under(task, columns),
        offsets=columns,
        stage=schedule.rows * columns * lanes,
        band=(rows + above) * row_bytes(columns) // task.sum_bytes,
    )
    return TallNumbers(carved.thread_bytes, rows, columns, carved.places)


def tall_schedule() -> ConvSchedule:
    """The schedule of the tall kernel.

    Tiles are high rather than wide: image rows in zero padding are skipped one by one, kernel columns
    only where a whole tile has them. Weights are loaded anew for each image row, so that 24 products
    have eleven loads.
    """
    rows = TALL_ROWS if this_machine().registers > 16 else 4
    strip_bytes = min(TALL_BYTES, second_level_cache_bytes() // 2)
    return ConvSchedule("tall", rows, 3, is_specialized=False, strip_bytes=strip_bytes)


def can_pack_tall(task: WindowTask) -> bool:
    """Whether the tall kernel computes `task`: depthwise, many dense rows high, vectors at least half full.

    The rows under the smallest block have to fit.
    """
    shape, lanes = task.shape, this_machine().lanes(task.sum_bytes)
    reach = (shape.kernel[2] - 1) * shape.dilation[2] + 1 + 2 * shape.stride[2]
    return (
        shape.in_channels == shape.out_channels == 1
        and 2 * shape.groups >= lanes
        and shape.kernel[0] == shape.stride[1] == shape.dilation[1] == 1
        and shape.kernel[1] >= TALL_ROWS
        and (shape.kernel[1] + TALL_ROWS) * reach * this_machine().vector_bytes <= TALL_BYTES
    )


class Tall(Method):
    """One vector of packed channels at a time, for high depthwise kernels."""

    name = "tall"
    emit = staticmethod(emit_tall_kernel)
    applies = staticmethod(can_pack_tall)

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """High tiles."""
        return tall_schedule()

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """A panel for each vector of channels: weights are [vector][tap][channel]."""
        machine = this_machine()
        kernel = TallKernel(
            task.dtype,
            task.channels_last,
            task.activation,
            machine,
            schedule.rows,
            schedule.vectors,
        )
        lanes = machine.lanes(task.sum_bytes)
        weights = ChannelPanels(task.shape, sum_dtype(task.dtype), lanes, lanes, taps)
        return KernelPlan(task, kernel, plan_tall(task, schedule, threads), weights, None)
