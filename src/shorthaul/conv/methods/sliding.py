"""Writing the sliding kernel: depthwise convolutions whose windows overlap from row to row.

A register tile is a few output rows high and one vector of channels or of neighbors deep: each image row under it is
loaded once per kernel column and serves every output that it touches. The kernel's height
and vertical stride are constants of the text; channels, widths and sizes are not.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.conv.layout.function import convolve_function, number_names, sum_dtype
from shorthaul.conv.layout.weights import WeightLayout
from shorthaul.conv.layout.workspace import Workspace, even_part
from shorthaul.conv.methods.base import ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.depthwise import channel_panels
from shorthaul.conv.methods.text import emit_preamble, emit_sizes_and_shape
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import CppSource

# Below this, one of the kernels that serve every shape is good enough.
SLIDING_FLOPS = 1_000_000
# Packed rows of one channel of a contiguous image: they stay in the first-level cache.
SLIDING_BYTES = 20 * 1024


PIXEL_WORKSPACE = Workspace(columns="int64_t")
PLANE_WORKSPACE = Workspace(columns="int32_t", column_places="int32_t", band="real")


class SlidingNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    block_rows: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class SlidingKernel:
    """Everything that decides the text of a sliding kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output rows
    pixels: (
        int  # of the register tile: neighboring outputs, or vectors of them in contiguous images
    )
    kernel_h: int
    stride_h: int


def emit_sliding_kernel(kernel: SlidingKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(SlidingNumbers._fields[:-1], None)
    function = convolve_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/sliding_tile"),
        workspace=PIXEL_WORKSPACE if kernel.channels_last else PLANE_WORKSPACE,
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    layout = "channels_last" if kernel.channels_last else "contiguous"
    vectors = "channels" if kernel.channels_last else "neighboring outputs"
    text = f"""\
// Depthwise convolution, {kernel.kernel_h} rows high, every {kernel.stride_h}. row: {dtype}, {layout}.
// Register tile: {kernel.rows} output rows x {kernel.pixels} vectors of {vectors} for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row) in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows}, tile_pixels = {kernel.pixels}, kernel_rows = {kernel.kernel_h}, row_stride = {kernel.stride_h};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_PIXEL_LOOPS if kernel.channels_last else _PLANE_LOOPS}}}
"""
    name = f"conv_sliding_{kernel.kernel_h}s{kernel.stride_h}_{dtype}_{layout}"
    return CppSource(name, text, (function,))


_PIXEL_LOOPS = """\
  using Windows = SlidingPixels<Value, Activation, tile_pixels, kernel_rows, row_stride>;
  // Threads own output rows.
  on_each_thread(threads < sizes.rows() ? threads : sizes.rows(), [&](int64_t thread, int64_t team) {
    Windows windows(Workspace(workspace + thread * thread_bytes, places), shape, sizes);
    const int64_t end = sizes.rows() * (thread + 1) / team;
    for (int64_t row = sizes.rows() * thread / team; row < end;) {
      const int64_t plane = row / out_h, first = row % out_h;
      const int64_t count = out_h - first < end - row ? out_h - first : end - row;
      // Tiles of rows; each goes over the row's outputs, and for each over the vectors of channels.
      balanced_tiles(count, tile_rows, [&](int64_t begin, int64_t size) {
        with_constant<tile_rows>(size, [&](auto rows) {
          windows.template run<rows>(input, weights, bias, residual, output, plane / out_d, plane % out_d, first + begin);
        });
      });
      row += count;
    }
  });
"""

_PLANE_LOOPS = """\
  using Windows = SlidingPlane<Value, Activation, tile_pixels, kernel_rows, row_stride>;
  const int64_t row_blocks = (out_h + block_rows - 1) / block_rows;
  const int64_t tasks = batch * shape.groups * out_d * row_blocks;
  // A task is a block of output rows of one channel of one image.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    Windows windows(Workspace(workspace + thread * thread_bytes, places), rows_under(int(block_rows), kernel_rows, row_stride), shape, sizes);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const Span rows = even_part(out_h, block_rows, task % row_blocks);
      const int64_t first = rows.begin, count = rows.end - rows.begin, depth = task / row_blocks % out_d;
      const int64_t plane = task / row_blocks / out_d, channel = plane % shape.groups;
      const int64_t source_depth = source_index(depth * shape.stride_d - padding_d, in_d, padding_mode);
      windows.pack(input + plane * sizes.in_plane() + source_depth * in_h * in_w, first, count, source_depth < 0);

      // Tiles of rows; each goes over the vectors of its rows.
      balanced_tiles(count, tile_rows, [&](int64_t begin, int64_t size) {
        with_constant<tile_rows>(size, [&](auto rows) {
          windows.template run_row<rows>(
              windows.band + begin * row_stride * windows.phases * windows.pitch,
              weights + channel * kernel_rows * shape.kernel_w, bias == nullptr ? 0 : bias[channel], residual, output,
              plane * sizes.out_plane() + (depth * full_h + first + begin) * full_w);
        });
      });
    }
  });
"""


def plan_sliding(task: WindowTask, schedule: ConvSchedule) -> SlidingNumbers:
    """Cut contiguous images into blocks of rows that fit the schedule's strips."""
    shape, value_bytes = task.shape, task.sum_bytes
    reach = (shape.kernel[2] - 1) * shape.dilation[2] + 1
    columns = (task.out_sizes[2] - 1) * shape.stride[2] + reach
    height = task.out_sizes[1]
    if task.channels_last:
        carved = PIXEL_WORKSPACE.carve(value_bytes, columns=columns)
        return SlidingNumbers(carved.thread_bytes, height, carved.places)
    lanes = this_machine().lanes(value_bytes)
    pitch = -(-task.out_sizes[2] // lanes) + (reach - 1) // shape.stride[2] // lanes + 1
    row_bytes = shape.stride[2] * pitch * lanes * value_bytes

    def band_bytes(rows: int) -> int:
        return ((rows - 1) * shape.stride[1] + shape.kernel[1]) * row_bytes

    fitting = [
        rows
        for rows in range(8, height + 1)
        if band_bytes(rows) <= (schedule.strip_bytes or SLIDING_BYTES)
    ]
    block_rows = even_part(height, max(fitting, default=min(8, height)))
    carved = PLANE_WORKSPACE.carve(
        value_bytes,
        columns=columns,
        column_places=columns,
        band=band_bytes(block_rows) // value_bytes,
    )
    return SlidingNumbers(carved.thread_bytes, block_rows, carved.places)


def choose_sliding_tile(task: WindowTask) -> tuple[int, int]:
    """Output rows and neighboring outputs of the sliding kernel's register tile.

    Sums, the weights of one kernel column and one image value share the registers. Channels-last
    rows of a power of two of bytes fall into the same sets of the first-level cache, so tiles of low
    kernels are wide rather than high: 4x3 took 129 us where 8x1 took 204 (128 channels, 56x56). With 32
    registers, other rows have tiles that are both (4x144 channels, 56x56: 211 us, 229 by 4x3; with a stride of
    2 101, 108 by 2x4).
    """
    has_many = this_machine().registers > 16
    if not task.channels_last or task.shape.kernel[1] > 3:
        return (8, 2) if has_many else (8, 1)
    if task.shape.stride[1] > 1:
        return (4, 2) if has_many else (2, 4)
    row_bytes = task.in_sizes[2] * task.shape.groups * task.dtype.itemsize
    return (8, 2) if has_many and row_bytes % 4096 else (4, 3)


def can_slide(task: WindowTask) -> bool:
    """Whether the sliding kernel computes `task`: depthwise, a few dense rows high."""
    shape = task.shape
    return (
        shape.in_channels == shape.out_channels == 1
        and shape.groups > 1
        and shape.kernel[0] == shape.dilation[1] == 1
        and 2 <= shape.kernel[1] <= 7
        and shape.stride[1] <= 2
        and (task.channels_last or task.step == (1, 1, 1))
    )


class Sliding(Method):
    """Tiles of output rows that share image rows, for low depthwise kernels."""

    name = "sliding"
    emit = staticmethod(emit_sliding_kernel)
    applies = staticmethod(can_slide)

    def prefers(self, task: WindowTask) -> bool:
        """Where the work is worth a kernel of this height and stride."""
        return task.flops >= SLIDING_FLOPS

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """The tile that suits the layout, the height and the stride."""
        return ConvSchedule(self.name, *choose_sliding_tile(task), strip_bytes=SLIDING_BYTES)

    def candidates(self, task: WindowTask) -> tuple[ConvSchedule, ...]:
        """High and wide tiles."""
        wide: tuple[tuple[int, int], ...] = ((4, 3), (4, 2), (2, 4))
        wide = wide if task.channels_last else ((4, 1),)
        return tuple(
            ConvSchedule(self.name, rows, pixels, strip_bytes=SLIDING_BYTES)
            for rows, pixels in ((8, 1), (8, 2), *wide)
        )

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Weights are [tap][channel] for channels-last images, [channel][tap] for contiguous ones."""
        shape = task.shape
        kernel = SlidingKernel(
            task.dtype,
            task.channels_last,
            task.activation,
            this_machine(),
            schedule.rows,
            schedule.vectors,
            shape.kernel[1],
            shape.stride[1],
        )
        weights: WeightLayout = WeightLayout(shape, sum_dtype(task.dtype), 1, 1, taps)
        if task.channels_last:
            weights = channel_panels(task, taps)
        return KernelPlan(task, kernel, plan_sliding(task, schedule), weights, None)
