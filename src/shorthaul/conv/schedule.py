"""How a convolution is carried out: chosen without measuring, or listed for the tuner to measure.

>>> from shorthaul.conv.problem import ConvProblem
>>> schedule = choose_schedule(ConvProblem(64, 64, (1, 3, 3)), (1, 1, 56, 56), threads=2)
>>> schedule.method, schedule.depth_chunk, schedule.is_specialised
('window', 4608, True)

A schedule never changes what is summed in which order within one method, so any two schedules of
the same method give the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from shorthaul.conv.edition import kernel_edition
from shorthaul.conv.geometry import WindowTask, forward_task
from shorthaul.conv.machine import VectorMachine, second_level_cache_bytes, this_machine
from shorthaul.conv.problem import ConvProblem
from shorthaul.jit.autotune import recall_choice

Sizes = tuple[int, int, int, int]  # batch, depth, height, width of the input

# Below this much work a kernel compiled for the shape cannot earn back the second that it takes to
# compile; the general kernel of the same method is compiled once for all shapes.
SPECIALISED_FLOPS = 20_000_000

# Packed planes per thread: half of a usual second-level cache of 512 KiB leaves room for the output.
PLANE_BYTES = 256 * 1024


@dataclass(frozen=True)
class ConvSchedule:
    """One way to carry out a convolution."""

    method: str  # window: vectors of output channels; planar: vectors of neighbouring outputs; depthwise: of channels
    rows: int  # of the register tile
    vectors: int  # of the register tile
    is_specialised: bool = True
    strip_bytes: int | None = None  # packed windows per thread; None: the papers' whole tensor
    depth_chunk: int = 4608  # values of a window that are summed before the next tile of windows
    windows: str | None = None  # where windows are read; None: what suits the task
    has_prefetch: bool = True  # whether lines of the output are asked for before they are written
    has_pairs: bool = False  # whether bfloat16 values are multiplied two by two (method window)

    def describe(self) -> str:
        """One line that tells it from the others; the tuner's name for it."""
        strips = (
            "whole tensor" if self.strip_bytes is None else f"strips {self.strip_bytes >> 10} KiB"
        )
        further = "" if self.is_specialised else " general"
        further += "" if self.windows is None else f" {self.windows}"
        further += "" if self.has_prefetch else " without prefetch"
        further += " pairs" if self.has_pairs else ""
        return (
            f"{self.method} {self.rows}x{self.vectors} {strips} chunk {self.depth_chunk}{further}"
        )


def choose_schedule(problem: ConvProblem, sizes: Sizes, threads: int) -> ConvSchedule:  # noqa: ARG001
    """The schedule that the cost model prefers.

    `threads` decides how the work is cut (`plan_blocks`), never the method: bits do not depend on it.
    """
    task = forward_task(problem, sizes[0], sizes[1:])
    if can_pair(task):
        return schedule_pass(task)
    # By one image's work: the batch that an image is in must not change its bits.
    is_large = task.flops >= SPECIALISED_FLOPS * task.batch
    if not problem.exact and is_large and can_use_winograd(task):
        schedules = {each: winograd_schedule(task, each) for each in (4, 2)}
        outputs = min(schedules, key=lambda each: winograd_products(task, each))
        if winograd_products(task, outputs) < WORTHWHILE_PRODUCTS:
            return schedules[outputs]
    # Groups as wide as a vector measured slower this way than packed planes: they are left to the tuner.
    is_narrow = task.shape.in_channels < this_machine().lanes(task.sum_bytes)
    is_grouped = can_group(task) and is_narrow and not prefers_sweep(task)
    if is_grouped and task.flops >= SLIDING_FLOPS:
        return ConvSchedule("grouped", GROUPED_PIXELS, 1, strip_bytes=0)
    return schedule_task(task)


def can_pair(task: WindowTask) -> bool:
    """Whether bfloat16 values are multiplied two by two, at twice the speed of float32.

    Sums of pairs have other bits than sums of widened values, so nothing but the problem decides.
    Depthwise and few output channels are left to kernels that widen.
    """
    shape, machine = task.shape, this_machine()
    return (
        task.dtype == torch.bfloat16
        and machine.multiplies_pairs
        and shape.in_channels > 1
        and 2 * shape.out_channels > machine.lanes(task.sum_bytes)
    )


def schedule_pass(task: WindowTask) -> ConvSchedule:
    """The schedule of a forward pass or of the gradient of the input: by pairs where they can be used."""
    if not can_pair(task):
        return schedule_task(task)
    return replace(_schedule_windows(replace(task, has_pairs=True)), has_pairs=True)


# Outputs of the grouped kernel's register tile; with the weights of a tap they fill the registers.
GROUPED_PIXELS = 8


def can_group(task: WindowTask) -> bool:
    """Whether whole groups lie side by side in vectors: channels last, as many outputs as inputs."""
    shape = task.shape
    lanes = this_machine().lanes(task.sum_bytes)
    return (
        task.channels_last
        and shape.in_channels == shape.out_channels
        and 1 < shape.in_channels <= lanes
        and lanes % shape.in_channels == 0
        and shape.groups * shape.in_channels % lanes == 0
        and shape.groups > 1
    )


# Transforms cost about a fifth of what the products cost: Winograd pays from a quarter saved on.
WORTHWHILE_PRODUCTS = 0.75


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


def winograd_schedule(task: WindowTask, outputs: int) -> ConvSchedule:
    """The schedule of F(`outputs`, 3)."""
    rows, vectors = _choose_tile(task, this_machine())
    strip_bytes = second_level_cache_bytes() // 2
    return ConvSchedule(f"winograd{outputs}", rows, vectors, strip_bytes=strip_bytes)


def schedule_task(task: WindowTask) -> ConvSchedule:
    """The schedule for one pass over windows of widened values."""
    machine = this_machine()
    is_specialised = task.flops >= SPECIALISED_FLOPS
    lanes = machine.lanes(task.sum_bytes)
    if can_slide(task) and task.flops >= SLIDING_FLOPS:
        rows, pixels = choose_sliding_tile(task)
        return ConvSchedule("sliding", rows, pixels, strip_bytes=SLIDING_BYTES)
    if can_pack_tall(task):
        return tall_schedule()
    if is_channelwise(task):
        return ConvSchedule("depthwise", *DEPTHWISE_TILE, is_specialised=False, strip_bytes=0)
    if prefers_sweep(task):
        return sweep_schedule(task)
    if is_specialised and has_vector_groups(task, lanes):
        rows, vectors = next(tile for tile in machine.tiles() if tile[1] == 1)
        strip_bytes = second_level_cache_bytes() * 3 // 8
        return ConvSchedule("window", rows, vectors, strip_bytes=strip_bytes, windows="rows")
    if prefers_planes(task, lanes):
        rows, vectors = _choose_planar_tile(task)
        return ConvSchedule("planar", rows, vectors, is_specialised=False, strip_bytes=PLANE_BYTES)
    return _schedule_windows(task)


def _schedule_windows(task: WindowTask) -> ConvSchedule:
    machine = this_machine()
    # General kernels all have the same tile, so that few of them are ever compiled.
    rows, vectors = machine.tiles()[0]
    is_specialised = task.flops >= SPECIALISED_FLOPS
    if is_specialised:
        skips_padding = task.windows == "rows" and has_much_padding(task)
        rows, vectors = _choose_tile(task, machine, skips_padding=skips_padding)
    return ConvSchedule(
        "window",
        rows,
        vectors,
        is_specialised=is_specialised,
        strip_bytes=second_level_cache_bytes() * 3 // 8,
    )


def schedule_gradient(task: WindowTask) -> ConvSchedule:
    """The schedule for the gradient of the weights, which is always summed over packed windows.

    Tiles of other methods would be wrong there: the planar kernel's twelve vectors for one output
    channel would be eleven vectors of nothing.
    """
    schedule = schedule_task(task)
    if schedule.method == "window":
        return schedule
    rows, vectors = this_machine().tiles()[0]
    strip_bytes = second_level_cache_bytes() * 3 // 8
    return ConvSchedule("window", rows, vectors, is_specialised=False, strip_bytes=strip_bytes)


def candidate_schedules(problem: ConvProblem, sizes: Sizes) -> tuple[ConvSchedule, ...]:
    """Schedules worth measuring, the cost model's choice first; for exact problems all give the same bits.

    ===========  =====================================================================================
    window       every register tile of the machine, strips of half the size, the papers' whole tensor
    planar       few output channels, small groups
    depthwise    vectors of channels, where every group has one
    sliding      the same for overlapping rows, high and wide tiles
    tall         the same for kernels of eight rows or more, from packed rows of one vector of channels
    sweep        groups whose output channels are one vector, or half of one
    grouped      whole small groups side by side in a vector, channels last
    winograd     F(4, 3) and F(2, 3), where the problem is not exact
    ===========  =====================================================================================

    Where bfloat16 is multiplied two by two, only the tiles of that: the others would give other bits.
    """
    task = forward_task(problem, sizes[0], sizes[1:])
    lanes = this_machine().lanes(task.sum_bytes)
    first = choose_schedule(problem, sizes, 1)
    if first.has_pairs:
        first = replace(first, is_specialised=True)
        tiled = (replace(first, rows=r, vectors=v) for r, v in this_machine().tiles())
        return tuple(dict.fromkeys((first, *tiled)))
    if first.method == "window":
        first = replace(first, is_specialised=True)
    strip_bytes = second_level_cache_bytes() * 3 // 8
    others = [
        ConvSchedule("window", rows, vectors, strip_bytes=strip_bytes)
        for rows, vectors in this_machine().tiles()
    ]
    if first.method == "window" and first.strip_bytes:
        others += [replace(first, strip_bytes=strip) for strip in (first.strip_bytes // 2, None)]
    if not task.channels_last or task.shape.out_channels <= lanes:
        rows, vectors = _choose_planar_tile(task)
        others.append(
            ConvSchedule("planar", rows, vectors, is_specialised=False, strip_bytes=PLANE_BYTES)
        )
    if is_channelwise(task):
        others.append(
            ConvSchedule("depthwise", *DEPTHWISE_TILE, is_specialised=False, strip_bytes=0)
        )
    if can_slide(task):
        tiles = (
            ((8, 1), (8, 2), (4, 3), (4, 2), (2, 4))
            if task.channels_last
            else ((8, 1), (8, 2), (4, 1))
        )
        others += [ConvSchedule("sliding", *tile, strip_bytes=SLIDING_BYTES) for tile in tiles]
    if can_pack_tall(task):
        others.append(tall_schedule())
    if can_sweep(task):
        others.append(sweep_schedule(task))
    if can_group(task):
        others += [ConvSchedule("grouped", pixels, 1, strip_bytes=0) for pixels in (8, 12)]
    if not problem.exact and can_use_winograd(task):
        others += [winograd_schedule(task, outputs) for outputs in (4, 2)]
    return tuple(dict.fromkeys((first, *others)))


def tuning_key(problem: ConvProblem, sizes: Sizes, threads: int) -> str:
    """What a measurement holds for, besides the processor."""
    words = f"{problem.describe()} {'x'.join(map(str, sizes))} threads {threads}"
    return f"conv schedule {words} kernels {kernel_edition()}"


def remembered_schedule(problem: ConvProblem, sizes: Sizes, threads: int) -> ConvSchedule | None:
    """The schedule that was measured to be the fastest here; `None` where nothing was measured."""
    choice = recall_choice(tuning_key(problem, sizes, threads))
    if choice is None:
        return None
    named = {each.describe(): each for each in candidate_schedules(problem, sizes)}
    return named.get(choice.name)


# Outputs and vectors of channels of the depthwise kernel's register tile.
DEPTHWISE_TILE = (6, 2)


def choose_sliding_tile(task: WindowTask) -> tuple[int, int]:
    """Output rows and neighbouring outputs of the sliding kernel's register tile.

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


# Below this, one of the kernels that serve every shape is good enough.
SLIDING_FLOPS = 1_000_000
# Packed rows of one channel of a contiguous image: they stay in the first-level cache.
SLIDING_BYTES = 20 * 1024


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


# Kernels of fewer rows are left to the sliding kernel.
TALL_ROWS = 8
# Packed rows of one vector of channels, at most: half of a second-level cache of 1 MiB.
TALL_BYTES = 512 * 1024


def tall_schedule() -> ConvSchedule:
    """The schedule of the tall kernel.

    Tiles are high rather than wide: image rows in zero padding are skipped one by one, kernel columns
    only where a whole tile has them. Weights are loaded anew for each image row, so that 24 products
    have eleven loads.
    """
    rows = TALL_ROWS if this_machine().registers > 16 else 4
    strip_bytes = min(TALL_BYTES, second_level_cache_bytes() // 2)
    return ConvSchedule("tall", rows, 3, is_specialised=False, strip_bytes=strip_bytes)


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


def is_channelwise(task: WindowTask) -> bool:
    """Whether vectors of channels work without packing: depthwise, channels last, inner windows."""
    shape = task.shape
    edge_outputs = (shape.kernel[2] - 1) * shape.dilation[2] / shape.stride[2]
    return (
        task.channels_last
        and shape.in_channels == shape.out_channels == 1
        and shape.groups >= this_machine().lanes(task.sum_bytes)
        and edge_outputs < 0.4 * task.out_sizes[2]
    )


def has_vector_groups(task: WindowTask, lanes: int) -> bool:
    """Whether the outputs of a group are just one vector where the image has them: channels last.

    Rows are packed once for all windows; planes would be transposed on the way in and out. Measured with 8
    channels in and out: 2.7 ms where planes took 3.2 and the grouped kernel 4.4 (256 channels, 56x56).
    """
    shape = task.shape
    is_suited = task.channels_last and task.can_read("rows")
    return is_suited and shape.groups > 1 and shape.out_channels == lanes


# Windows of fewer values are planes even where registers are few.
SHORT_WINDOW = 128


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


# Register tiles of the planar kernel by output channels of a group: 12 sums each.
_PLANAR_TILES = {1: (1, 12), 2: (2, 6), 3: (3, 4)}


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
    is_specialised = task.flops >= SPECIALISED_FLOPS
    is_suited = task.channels_last or task.shape.groups > 1
    return is_specialised and is_suited and this_machine().registers > 16 and can_sweep(task)


# Kernels of more columns have tiles of so few rows that their weights are loaded too often.
SWEEP_COLUMNS = 5
# Packed columns of a block: beside its outputs they stay in the second-level cache (38 to 128 KiB took the same
# time on contiguous images; channels last, 128 took 5 % longer).
SWEEP_BYTES = 72 * 1024


def sweep_schedule(task: WindowTask) -> ConvSchedule:
    """The schedule of the sweep kernel: sums, the weights of a kernel row and one value fill the registers."""
    columns = task.shape.kernel[2]
    rows = (this_machine().registers - 1) // columns - 1
    return ConvSchedule("sweep", rows, 1, strip_bytes=SWEEP_BYTES)


# Below this share of the products, tiles that end where other taps are read cost as much as the zeros.
MUCH_PADDING = 0.03


def has_much_padding(task: WindowTask) -> bool:
    """Whether the window kernel leaves out the taps that read zeros of the padding from packed rows.

    It does so unless its tiles rely on even steps from window to window, for a whole call or not at all.
    """
    return task.padding_share >= MUCH_PADDING


# From so many values on, a tile's sums take much longer to make than to write.
LONG_WINDOW = 256


def _choose_tile(
    task: WindowTask, machine: VectorMachine, *, skips_padding: bool = False
) -> tuple[int, int]:
    """The tile with the fewest idle lanes; among equals, the machine's favourite.

    Contiguous outputs are written to as many planes at once as a panel has channels: where windows are
    short, two vectors of them leave more lines in the first-level cache than four (conv7 on AVX-512: 1.3
    times as fast). Skipping padding, they leave all at once, and low tiles need no even steps; nor do they
    end with rows that are narrower than a high tile (conv12: 1.4 times as fast). Over long windows, wide
    tiles that leave no narrow panel are the fastest (conv1 by 9x3: 1.02 times as fast as by 14x2).
    """
    vectors_needed = -(-task.shape.out_channels // machine.lanes(task.sum_bytes))

    def cost(tile: tuple[int, int]) -> float:
        # Tiles in full panels run at full speed; a narrower last panel has fewer sums in flight.
        rows, vectors = tile
        full, tail = divmod(vectors_needed, vectors)
        cycles = full * vectors / 2
        if tail:
            cycles += max(tail / 2, 4 / rows, (tail + rows) / rows / 2)
        return cycles * (1 if vectors > 1 else 1.1)

    tiles = machine.tiles()
    narrow = next(tile for tile in tiles if tile[1] == 2)
    if task.channels_last or skips_padding or task.out_sizes[2] < narrow[0]:
        return min(tiles, key=cost)
    if (
        machine.registers <= 16
        or task.shape.in_channels * math.prod(task.shape.kernel) < LONG_WINDOW
    ):
        return min((narrow, *(tile for tile in tiles if tile is not narrow)), key=cost)
    by_width = sorted(tiles, key=lambda tile: -tile[1])
    return min(by_width, key=lambda tile: (cost(tile), vectors_needed % tile[1] > 0))
