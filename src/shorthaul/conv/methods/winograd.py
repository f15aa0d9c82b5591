"""Writing the row-wise Winograd kernel: fewer products for windows three columns wide.

F(4, 3) makes four neighboring outputs of one kernel row from six products instead of twelve, F(2, 3)
two from four instead of six. Sums are taken of transformed values, so the rounding error is larger:
only `exact=False` allows it. Weights are transformed once, in double precision.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shorthaul.conv.layout.function import convolve_function, number_names, sum_dtype
from shorthaul.conv.layout.weights import WeightLayout, WeightView, forward_view
from shorthaul.conv.layout.workspace import LINE_BYTES, Workspace, even_part, share_rows
from shorthaul.conv.methods.base import SPECIALIZED_FLOPS, ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.text import emit_preamble, emit_sizes_and_shape
from shorthaul.conv.methods.window import choose_tile
from shorthaul.conv.methods.window_kernel import WindowKernel, emit_panel_widths, find_window_kernel
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import second_level_cache_bytes, this_machine
from shorthaul.jit import CppSource

# Rows are points of interpolation: what the three weights of a kernel row become at each.
_POINTS = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
# Transforms cost about a fifth of what the products cost: Winograd pays from a quarter saved on.
WORTHWHILE_PRODUCTS = 0.75


WORKSPACE = Workspace(
    window_offsets="int64_t",
    output_offsets="int64_t",
    columns="int32_t",
    line="real",
    products="real",
    finished="real",
    transformed="real",
)


class WinogradNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    block_rows: int
    block_tiles: int
    panel_parts: int
    depth_chunk: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class WinogradKernel:
    """Everything that decides the text of a Winograd kernel."""

    window: WindowKernel  # dtype, layout, activation, machine, register tile and shape
    outputs: int  # of one tile: 4 or 2


def transform_weights(weight: Tensor, outputs: int) -> Tensor:
    """Weights (..., 3) as `outputs` + 2 points (..., outputs + 2), rounded once.

    >>> transform_weights(torch.tensor([2.0, 4.0, 6.0]), 2)
    tensor([2., 6., 2., 6.])
    """
    points = torch.tensor(_POINTS[outputs], dtype=torch.float64, device="cpu")
    return (weight.double() @ points.T).to(weight.dtype)


def emit_winograd_kernel(kernel: WinogradKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    window = kernel.window
    names = number_names(WinogradNumbers._fields[:-1], window.shape)
    function = convolve_function(window.dtype)
    preamble = emit_preamble(
        window.dtype,
        window.machine,
        window.channels_last,
        window.activation,
        ("jit/include/parallel", "conv/methods/winograd_block"),
        workspace=WORKSPACE,
    )
    detail = "general" if window.shape is None else window.shape.describe()
    text = f"""\
// Convolution by row-wise Winograd F({kernel.outputs}, 3): {detail}, {str(window.dtype).removeprefix("torch.")},
// {"channels last" if window.channels_last else "contiguous"}. Register tile: {window.rows} windows x {window.panel} output channels for {window.machine.name}.
// Every sum runs over (kernel row, channel) of one point in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {window.rows}, tile_vectors = {window.vectors}, tile_outputs = {kernel.outputs};
constexpr int64_t panel = tile_vectors * lanes;

{function.prototype()} {{
{emit_sizes_and_shape(names, window.shape)}
{_LOOPS.replace("{DISPATCH}", emit_panel_widths(window))}}}
"""
    return CppSource(f"conv_winograd{kernel.outputs}_{detail}", text, (function,))


_LOOPS = """\
  using Block = WinogradBlock<Value, channels_last, tile_outputs>;
  const int64_t panels = (shape.out_channels + panel - 1) / panel;
  const int64_t tile_blocks = ((out_w + tile_outputs - 1) / tile_outputs + block_tiles - 1) / block_tiles;
  const int64_t row_blocks = batch * out_d * ((out_h + block_rows - 1) / block_rows);
  const int64_t parts = shape.groups * panel_parts, tasks = row_blocks * tile_blocks * parts;
  const int64_t point_values = shape.kernel_h * shape.in_channels;

  // A task is a block of output rows and a part of one group's output channels.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    Block block(Workspace(workspace + thread * thread_bytes, places), block_rows, block_tiles, shape, sizes);
    int64_t packed = -1;
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const int64_t part = task % panel_parts, group = task / panel_parts % shape.groups;
      if (task / panel_parts != packed) {
        packed = task / panel_parts;
        block.pack(input, task / parts / tile_blocks, task / parts % tile_blocks, group);
      }

      // Panels of output channels.
      for (int64_t each = panels * part / panel_parts; each < panels * (part + 1) / panel_parts; ++each) {
        const int64_t channel = each * panel;
        const int64_t channels = shape.out_channels - channel < panel ? shape.out_channels - channel : panel;
        // Out here: g++ 12 fails on some constant shapes that only the innermost function reads.
        const int64_t first_channel = group * shape.out_channels + channel;
        const auto run_panel = [&](auto vectors_here) {
          constexpr int vectors = vectors_here;
          const real* of_panel = weights + (group * panels + each) * Block::points * point_values * panel;

          // Points, then chunks of their windows: the weights of a chunk fit the first-level cache.
          for (int64_t point = 0; point < Block::points; ++point) {
            for (int64_t begin = 0; begin < point_values; begin += depth_chunk) {
              const int64_t count = point_values - begin < depth_chunk ? point_values - begin : depth_chunk;
              // Tiles of windows: sums stay in registers for the whole chunk.
              balanced_tiles(block.windows, tile_rows, [&](int64_t window, int64_t size) {
                with_constant<tile_rows>(size, [&](auto rows) {
                  block.template run_tile<rows, vectors>(window, point, begin, count, of_panel + point * point_values * vectors * lanes);
                });
              });
            }
          }
          block.template finish_panel<vectors, Activation>(
              output, residual, first_channel, channels,
              bias == nullptr ? nullptr : bias + (group * panels + each) * panel);
        };
        {DISPATCH}
      }
    }
  });
"""


def plan_winograd(
    task: WindowTask, schedule: ConvSchedule, threads: int, outputs: int
) -> WinogradNumbers:
    """Cut the output into blocks of rows and tiles whose transformed rows fit the strips."""
    shape, value_bytes = task.shape, task.sum_bytes
    panel = schedule.vectors * this_machine().lanes(value_bytes)
    height, tiles = task.out_sizes[1], -(-task.out_sizes[2] // outputs)
    budget = schedule.strip_bytes or second_level_cache_bytes() // 2

    def tile_bytes(rows: int) -> int:
        band = rows + shape.kernel[1] - 1
        transformed = (outputs + 2) * band * shape.in_channels
        return (transformed + (outputs + 2) * rows * panel) * value_bytes

    # Rows at the edge of a block are transformed again by its neighbor: high blocks first.
    wanted_rows = min(height, 16)
    block_tiles = even_part(tiles, max(1, min(tiles, budget // tile_bytes(wanted_rows))))
    block_rows = wanted_rows
    while block_rows > 1 and tile_bytes(block_rows) * block_tiles > budget:
        block_rows -= 1
    while block_rows < height and tile_bytes(block_rows + 1) * block_tiles <= budget:
        block_rows += 1
    images = task.batch * task.out_sizes[0] * -(-tiles // block_tiles) * shape.groups
    most_rows, panels = block_rows, -(-shape.out_channels // panel)
    if threads > 1 and images * -(-height // block_rows) % threads:
        wanted = -(-4 * threads // images)
        block_rows = min(block_rows, max(4, -(-height // wanted)))
    block_rows = share_rows(
        height, even_part(height, block_rows), most_rows, images, panels, threads
    )
    blocks = images * -(-height // block_rows)
    parts = min(panels, threads) if blocks < 3 * threads and blocks % threads else 1
    capacity, line = block_rows * block_tiles, block_tiles * outputs + 2
    carved = WORKSPACE.carve(
        value_bytes,
        slack_bytes=LINE_BYTES,
        window_offsets=capacity,
        output_offsets=capacity * outputs,
        columns=line,
        line=line * shape.in_channels,
        products=(outputs + 2) * capacity * panel,
        finished=0 if task.channels_last else capacity * outputs * panel,
        transformed=(outputs + 2)
        * block_tiles
        * (block_rows + shape.kernel[1] - 1)
        * shape.in_channels,
    )
    return WinogradNumbers(
        carved.thread_bytes, block_rows, block_tiles, parts, schedule.depth_chunk, carved.places
    )


def can_use_winograd(task: WindowTask) -> bool:
    """Whether row-wise Winograd computes `task`: three columns wide, dense, full vectors of channels."""
    shape = task.shape
    return (
        shape.kernel[0] == 1
        and shape.kernel[2] == 3
        and shape.stride == shape.dilation == (1, 1, 1)
        and shape.in_channels % this_machine().lanes(task.sum_bytes) == 0
        and min(shape.in_channels, shape.out_channels) >= 16
    )


def winograd_products(task: WindowTask, outputs: int) -> float:
    """Multiplications by tiles of `outputs`, as a share of those of the sums written out."""
    width = task.out_sizes[2]
    return (outputs + 2) * -(-width // outputs) / (3 * width)


@dataclass(frozen=True, eq=False)
class TransformedPanels(WeightLayout):
    """Weights of three columns as the points of a tile."""

    only_moves: ClassVar[bool] = False
    outputs: int = 4

    def prepare(self, weight: Tensor, canonical: tuple[int, ...]) -> Tensor:
        """The transformed weights."""
        return transform_weights(super().prepare(weight, canonical), self.outputs).contiguous()

    def view(self, weight: Tensor) -> WeightView:
        """Where they lie in the transformed tensor."""
        return forward_view(weight, self.shape.groups)


class Winograd(Method):
    """F(`outputs`, 3) along the rows: fewer products, a larger rounding error."""

    emit = staticmethod(emit_winograd_kernel)

    def __init__(self, outputs: int) -> None:
        self.name = f"winograd{outputs}"
        self.outputs = outputs

    def applies(self, task: WindowTask) -> bool:
        """Three columns wide, dense, full vectors of channels, and a larger error is allowed."""
        return not task.exact and can_use_winograd(task)

    def prefers(self, task: WindowTask) -> bool:
        """Where it has the fewest products of its kind, and clearly fewer than there are in all."""
        # By one image's work: the batch that an image is in must not change its bits.
        is_large = task.flops >= SPECIALIZED_FLOPS * task.batch
        products = {each: winograd_products(task, each) for each in sorted(_POINTS, reverse=True)}
        is_best = min(products, key=products.__getitem__) == self.outputs
        return is_large and is_best and products[self.outputs] < WORTHWHILE_PRODUCTS

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """The tile of the window kernel, strips of half the second-level cache."""
        rows, vectors = choose_tile(task, this_machine())
        return ConvSchedule(self.name, rows, vectors, strip_bytes=second_level_cache_bytes() // 2)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Panels as the window kernel has them, of transformed weights."""
        window = find_window_kernel(task, schedule)
        weights = TransformedPanels(
            task.shape, sum_dtype(task.dtype), window.panel, window.lanes, outputs=self.outputs
        )
        numbers = plan_winograd(task, schedule, threads, self.outputs)
        kernel = WinogradKernel(window, self.outputs)
        return KernelPlan(task, kernel, numbers, weights, window.shape)
