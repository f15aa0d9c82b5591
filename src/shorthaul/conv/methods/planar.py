"""Writing the planar kernel: vectors run along the image's width instead of the output channels.

It is for windows that few output channels share: small groups, depthwise, the last layer of a
decoder. Its loops need no constants of the shape, so one kernel serves every shape.

"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.conv.layout.function import convolve_function, number_names, sum_dtype
from shorthaul.conv.layout.weights import WeightLayout
from shorthaul.conv.layout.workspace import LINE_BYTES, Workspace, even_part
from shorthaul.conv.methods.base import SPECIALIZED_FLOPS, ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.text import (
    emit_dispatch,
    emit_preamble,
    emit_sizes_and_shape,
    find_widths,
)
from shorthaul.conv.methods.window import has_vector_groups
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import CppSource

# Packed planes per thread: half of a usual second-level cache of 512 KiB leaves room for the output.
PLANE_BYTES = 256 * 1024
# Windows of fewer values are planes even where registers are few.
SHORT_WINDOW = 128

# Register tiles of the planar kernel by output channels of a group: 12 sums each.
_PLANAR_TILES = {1: (1, 12), 2: (2, 6), 3: (3, 4)}


WORKSPACE = Workspace(
    tap_offsets="int64_t",
    column_sources="int32_t",
    stretches="PlanarStretch",
    planes="real",
)


class PlanarNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    block_rows: int
    block_columns: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class PlanarKernel:
    """Everything that decides the text of a planar kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output channels
    vectors: int  # of the register tile: vectors of neighboring outputs
    counts: tuple[int, ...] = ()  # of output channels in the tiles that occur; (): any


def emit_planar_kernel(kernel: PlanarKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, ...)`."""
    names = number_names(PlanarNumbers._fields[:-1], None)
    function = convolve_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/planar_block"),
        workspace=WORKSPACE,
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    layout = "channels_last" if kernel.channels_last else "contiguous"
    counts = kernel.counts or range(1, kernel.rows + 1)
    dispatch = emit_dispatch("left", counts, "run_tile", indent=10)
    text = f"""\
// Convolution vectorized over the width: any shape, {dtype}, {layout}.
// Register tile: {kernel.rows} output channels x {kernel.vectors} vectors of outputs for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
{preamble}
constexpr int tile_channels = {kernel.rows}, tile_vectors = {kernel.vectors};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_LOOPS.replace("{DISPATCH}", dispatch)}}}
"""
    return CppSource(
        f"conv_planar_{kernel.rows}x{kernel.vectors}_{dtype}_{layout}", text, (function,)
    )


_LOOPS = """\
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t row_blocks = batch * out_d * ((out_h + block_rows - 1) / block_rows);
  const int64_t tasks = row_blocks * column_blocks * shape.groups;
  const int64_t all_channels = shape.out_channels * shape.groups;
  const bool is_plain = residual == nullptr && step_w == 1 && std::is_same_v<Activation, NoActivation>;
  const int64_t channel_tiles = (shape.out_channels + tile_channels - 1) / tile_channels;

  // A task is a block of output rows of one image, for one group.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    PlanarBlock<Value, channels_last> block(Workspace(workspace + thread * thread_bytes, places), block_rows, block_columns, shape);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const GroupTask at = find_group_task<channels_last>(task, tasks / batch, shape.groups);
      const int64_t group = at.group, where = at.place;
      block.pack(input, where / column_blocks, where % column_blocks, group, shape, sizes);
      const int64_t row_step = shape.stride_h * block.layout.phases * block.layout.pitch;
      const int64_t row_vectors = (block.columns + lanes - 1) / lanes;

      const auto run_channels = [&](int64_t first_tile, int64_t last_tile, int64_t row, int64_t vector, auto vectors_here, auto adjacent) {
        constexpr int vectors = vectors_here;
        for (int64_t tile = first_tile; tile < last_tile; ++tile) {
          const int64_t first = tile * tile_channels;
          [[maybe_unused]] const int64_t left = shape.out_channels - first;
          const auto run_tile = [&](auto count_here) {
            constexpr int count = count_here;
            const int64_t first_channel = group * shape.out_channels + first;
            // Sums that need no more than storing go straight to the output.
            if constexpr (adjacent && Value::is_real && !channels_last) {
              if (is_plain && (vector + vectors) * lanes <= block.columns) {
                real* to = output + block.output_offset(first_channel, row, vector * lanes, all_channels, sizes);
                // The next but one tile's lines: every channel's lie in pages of their own.
                for (int channel = 0; channel < count; ++channel) {
                  const real* later = to + channel * sizes.out_plane() + 2 * vectors * lanes;
                  __builtin_prefetch(later, 1);
                  __builtin_prefetch(later + 64 / sizeof(real), 1);
                }
                block.template run_tile<count, vectors, adjacent>(
                    to, sizes.out_plane(),
                    block.planes + row * row_step + vector * lanes, row_step,
                    weights + (group * channel_tiles + tile) * shape.window_values() * tile_channels,
                    bias == nullptr ? nullptr : bias + first_channel, shape);
                return;
              }
            }
            real sums[count * vectors * lanes];
            block.template run_tile<count, vectors, adjacent>(
                sums, vectors * lanes, block.planes + row * row_step + vector * lanes, row_step,
                weights + (group * channel_tiles + tile) * shape.window_values() * tile_channels,
                bias == nullptr ? nullptr : bias + first_channel, shape);
            if constexpr (channels_last && count > 1 && count <= lanes) {
              for (int v = 0; v < vectors; ++v) {
                block.template finish_pixels<count, Activation>(
                    output, residual, first_channel, adjacent ? row : row + v, adjacent ? (vector + v) * lanes : 0,
                    sums + v * lanes, vectors * lanes, all_channels, sizes);
              }
              return;
            }
            for (int channel = 0; channel < count; ++channel) {
              const int64_t out_channel = first_channel + channel;
              const real* of_channel = sums + channel * vectors * lanes;
              if (adjacent) {
                block.template finish_line<Activation>(output, residual, out_channel, row, vector * lanes, of_channel, vectors, all_channels, sizes);
              } else {
                for (int v = 0; v < vectors; ++v) {
                  block.template finish_line<Activation>(output, residual, out_channel, row + v, 0, of_channel + v * lanes, 1, all_channels, sizes);
                }
              }
            }
          };
          {DISPATCH}
        }
      };

      if (row_vectors > 1) {
        // Rows, tiles of neighboring vectors, and tiles of output channels: innermost, so that the
        // values under a tile stay in the first-level cache; outside, where all values do, so that
        // the output is written in long lines.
        const int64_t channel_step = block.is_small(shape) ? 1 : channel_tiles;
        for (int64_t row = 0; row < block.rows; ++row) {
          for (int64_t first = 0; first < channel_tiles; first += channel_step) {
            balanced_tiles(row_vectors, tile_vectors, [&](int64_t vector, int64_t size) {
              with_constant<tile_vectors>(size, [&](auto vectors) {
                run_channels(first, first + channel_step, row, vector, vectors, std::true_type{});
              });
            });
          }
        }
      } else {
        // Short rows: tiles of rows, one vector each.
        constexpr int tile_rows = tile_vectors < 4 ? tile_vectors : 4;
        balanced_tiles(block.rows, tile_rows, [&](int64_t row, int64_t size) {
          with_constant<tile_rows>(size, [&](auto vectors) { run_channels(0, channel_tiles, row, 0, vectors, std::false_type{}); });
        });
      }
    }
  });
"""


def plan_planes(task: WindowTask, schedule: ConvSchedule, threads: int) -> PlanarNumbers:
    """Cut the output into blocks of rows whose packed planes fit the schedule's strips."""
    value_bytes = task.sum_bytes
    lanes, line = this_machine().lanes(value_bytes), 64 // value_bytes
    shape = task.shape
    reach = (shape.kernel[2] - 1) * shape.dilation[2] + 1
    phases = min(reach, shape.stride[2])

    def planes_bytes(rows: int, columns: int) -> int:
        pitch = -(-(-(-columns // lanes) * lanes + (reach - 1) // shape.stride[2]) // lanes) * lanes
        band = (rows - 1) * shape.stride[1] + (shape.kernel[1] - 1) * shape.dilation[1] + 1
        plane = (-(-shape.kernel[0] * band * phases * pitch // line) | 1) * line
        return shape.in_channels * plane * value_bytes

    budget = schedule.strip_bytes or PLANE_BYTES
    height, width = task.out_sizes[1:]

    def largest_rows(columns: int) -> int:
        rows = height
        while rows > 1 and planes_bytes(rows, columns) > budget:
            rows = -(-rows // 2) if rows > 16 else rows - 1
        return even_part(height, rows)

    # Rows and columns at the edges of a block are packed again by its neighbor: of the widths that
    # fill register tiles, the one that reads the fewest values of the image.
    tile = schedule.vectors * lanes
    widths = {width} | {tile * count for count in (1, 2, 4, 8, 16, 32) if tile * count < width}
    fitting = [each for each in widths if planes_bytes(1, each) <= 2 * budget] or [min(widths)]

    def values_read(columns: int) -> float:
        rows = largest_rows(columns)
        band = (rows - 1) * shape.stride[1] + (shape.kernel[1] - 1) * shape.dilation[1] + 1
        return -(-width // columns) * ((columns - 1) * shape.stride[2] + reach) * band / rows

    columns = min(sorted(fitting, reverse=True), key=values_read)
    rows = largest_rows(columns)
    # Some blocks for each thread even out the load, as long as a block is worth its packing.
    others = task.batch * task.out_sizes[0] * -(-width // columns) * shape.groups
    wanted = -(-4 * threads // others)
    if threads > 1 and -(-height // rows) < wanted:
        rows = even_part(height, max(min(rows, 4), -(-height // wanted)))
    pitch = -(-columns // lanes) * lanes + (reach - 1) // shape.stride[2] + lanes
    carved = WORKSPACE.carve(
        value_bytes,
        slack_bytes=LINE_BYTES,
        tap_offsets=math.prod(shape.kernel),
        column_sources=phases * pitch,
        stretches=phases,
        planes=planes_bytes(rows, columns) // value_bytes,
    )
    return PlanarNumbers(carved.thread_bytes, rows, columns, carved.places)


def prefers_planes(task: WindowTask, lanes: int) -> bool:
    """Whether vectors along the width are fuller than vectors of output channels.

    Contiguous images of few channels also prefer them: neither their input nor their output is
    then transposed. With sixteen registers only under short windows: tiles of twelve sums load more than
    windows do (held to AVX2, conv7's 27 values took 1.48 ms, 1.61 by windows; conv3's 147 1.88, 1.83 by
    windows; conv1's 363 1.76, 1.63 by windows). Single values of channels-last images are read where they lie, and planes of them
    would be made for one use each: with half a vector of outputs or more they took 1.05 to 3.5 times as long.
    """
    channels, width = task.shape.out_channels, task.out_sizes[2]
    filled_channels = channels / (-(-channels // lanes) * lanes)
    filled_width = width / (-(-width // lanes) * lanes)
    if task.channels_last and math.prod(task.shape.kernel) == 1 and 2 * channels >= lanes:
        return False
    if channels <= lanes:
        return filled_channels < 1.25 * filled_width
    taps = math.prod(task.shape.kernel)
    is_short = task.shape.in_channels * taps < SHORT_WINDOW
    return (
        not task.channels_last
        and (is_short or this_machine().registers > 16)
        and task.shape.in_channels < lanes
        and taps > 1
        and width >= 4 * lanes
        and filled_width > 0.9
    )


def _choose_planar_tile(task: WindowTask) -> tuple[int, int]:
    channels = task.shape.out_channels
    if channels in _PLANAR_TILES:
        return _PLANAR_TILES[channels]
    if channels >= 8 and this_machine().registers > 16:
        # Windows of few values are bound by their outputs: many channels share what is read of the image
        # (1 to 512 channels, 10 wide: 6.1 ms, 7.9 by 8x3 and 8.5 by 4x4; conv7 2.3, 2.6 and 2.1). Over
        # long ones, unaligned loads of the image are the bound, and 8x3 has the fewest (conv3: 0.95 ms,
        # 1.08 by 4x4).
        values = task.shape.in_channels * math.prod(task.shape.kernel)
        return (12, 2) if values < 16 else (4, 4) if values < 64 else (8, 3)
    return (3, 4) if channels % 3 == 0 and channels % 4 else (4, 3)


class Planar(Method):
    """Vectors of neighboring outputs, for windows that few output channels share."""

    name = "planar"
    emit = staticmethod(emit_planar_kernel)

    def applies(self, task: WindowTask) -> bool:
        """Contiguous images, or few output channels in a group."""
        lanes = this_machine().lanes(task.sum_bytes)
        return not task.channels_last or task.shape.out_channels <= lanes

    def prefers(self, task: WindowTask) -> bool:
        """Where vectors along the width are fuller than those of output channels."""
        lanes = this_machine().lanes(task.sum_bytes)
        is_left = task.flops >= SPECIALIZED_FLOPS and has_vector_groups(task, lanes)
        return not is_left and prefers_planes(task, lanes)

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """The tile that suits the output channels; one kernel for every shape."""
        rows, vectors = _choose_planar_tile(task)
        return ConvSchedule(self.name, rows, vectors, is_specialized=False, strip_bytes=PLANE_BYTES)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Panels are as many output channels as a tile has."""
        rows, counts = schedule.rows, find_widths(task.shape.out_channels, 1, schedule.rows)
        if len(counts) > 1 and task.flops < SPECIALIZED_FLOPS:
            counts = ()  # one kernel for all small ones: there are as many rests as channels of a tile
        kernel = PlanarKernel(
            task.dtype, task.channels_last, task.activation, this_machine(), rows, schedule.vectors,
            counts,
        )  # fmt: skip
        weights = WeightLayout(task.shape, sum_dtype(task.dtype), rows, 1, taps)
        return KernelPlan(task, kernel, plan_planes(task, schedule, threads), weights, None)
