"""How a convolution is carried out: chosen without measuring, or listed for the tuner to measure.

>>> from shorthaul.conv.problem import ConvProblem
>>> schedule = choose_schedule(ConvProblem(64, 64, (1, 3, 3)), (1, 1, 56, 56), threads=2)
>>> schedule.describe()
'window 6x2 strips 192 KiB chunk 4608'

A schedule never changes what is summed in which order within one method, so any two schedules of
the same method give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

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

    def describe(self) -> str:
        """One line that tells it from the others; the tuner's name for it."""
        strips = (
            "whole tensor" if self.strip_bytes is None else f"strips {self.strip_bytes >> 10} KiB"
        )
        further = "" if self.is_specialised else " general"
        further += "" if self.windows is None else f" {self.windows}"
        further += "" if self.has_prefetch else " without prefetch"
        return (
            f"{self.method} {self.rows}x{self.vectors} {strips} chunk {self.depth_chunk}{further}"
        )


@dataclass(frozen=True)
class BlockPlan:
    """How the output of one call is cut into tasks for threads."""

    block_rows: int
    block_columns: int
    panel_parts: int
    thread_bytes: int


def choose_schedule(problem: ConvProblem, sizes: Sizes, threads: int) -> ConvSchedule:  # noqa: ARG001
    """The schedule that the cost model prefers.

    `threads` decides how the work is cut (`plan_blocks`), never the method: bits do not depend on it.
    """
    task = forward_task(problem, sizes[0], sizes[1:])
    # By one image's work: the batch that an image is in must not change its bits.
    is_large = task.flops >= SPECIALISED_FLOPS * task.batch
    if not problem.exact and is_large and can_use_winograd(task):
        schedules = {each: winograd_schedule(task, each) for each in (4, 2)}
        outputs = min(schedules, key=lambda each: winograd_products(task, each))
        if winograd_products(task, outputs) < WORTHWHILE_PRODUCTS:
            return schedules[outputs]
    # Groups as wide as a vector measured slower this way than packed planes: they are left to the tuner.
    is_narrow = task.shape.in_channels < this_machine().lanes(_sum_bytes(task))
    if can_group(task) and is_narrow and task.flops >= SLIDING_FLOPS:
        return ConvSchedule("grouped", GROUPED_PIXELS, 1, strip_bytes=0)
    return schedule_task(task)


# Outputs of the grouped kernel's register tile; with the weights of a tap they fill the registers.
GROUPED_PIXELS = 8


def can_group(task: WindowTask) -> bool:
    """Whether whole groups lie side by side in vectors: channels last, as many outputs as inputs."""
    shape = task.shape
    lanes = this_machine().lanes(_sum_bytes(task))
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
        and shape.in_channels % this_machine().lanes(_sum_bytes(task)) == 0
        and min(shape.in_channels, shape.out_channels) >= 16
    )


def winograd_products(task: WindowTask, outputs: int) -> float:
    """Multiplications by tiles of `outputs`, as a share of those of the sums written out."""
    width = task.out_sizes[2]
    return (outputs + 2) * -(-width // outputs) / (3 * width)


def winograd_schedule(task: WindowTask, outputs: int) -> ConvSchedule:
    """The schedule of F(`outputs`, 3)."""
    machine = this_machine()
    lanes = machine.lanes(_sum_bytes(task))
    rows, vectors = _choose_tile(task.shape.out_channels, lanes, machine)
    strip_bytes = second_level_cache_bytes() // 2
    return ConvSchedule(f"winograd{outputs}", rows, vectors, strip_bytes=strip_bytes)


def plan_winograd(task: WindowTask, schedule: ConvSchedule, threads: int) -> BlockPlan:
    """Cut the output into blocks of rows and tiles whose transformed rows fit the strips."""
    outputs = int(schedule.method.removeprefix("winograd"))
    shape, value_bytes = task.shape, _sum_bytes(task)
    panel = schedule.vectors * this_machine().lanes(value_bytes)
    height, tiles = task.out_sizes[1], -(-task.out_sizes[2] // outputs)
    budget = schedule.strip_bytes or second_level_cache_bytes() // 2

    def tile_bytes(rows: int) -> int:
        band = rows + shape.kernel[1] - 1
        transformed = (outputs + 2) * band * shape.in_channels
        return (transformed + (outputs + 2) * rows * panel) * value_bytes

    # Rows at the edge of a block are transformed again by its neighbour: high blocks first.
    wanted_rows = min(height, 16)
    block_tiles = _even_part(tiles, max(1, min(tiles, budget // tile_bytes(wanted_rows))))
    block_rows = wanted_rows
    while block_rows > 1 and tile_bytes(block_rows) * block_tiles > budget:
        block_rows -= 1
    while block_rows < height and tile_bytes(block_rows + 1) * block_tiles <= budget:
        block_rows += 1
    images = task.batch * task.out_sizes[0] * -(-tiles // block_tiles) * shape.groups
    if threads > 1 and images * -(-height // block_rows) % threads:
        wanted = -(-4 * threads // images)
        block_rows = min(block_rows, max(4, -(-height // wanted)))
    block_rows = _even_part(height, block_rows)
    blocks = images * -(-height // block_rows)
    panels = -(-shape.out_channels // panel)
    parts = min(panels, threads) if blocks < 3 * threads and blocks % threads else 1
    capacity, line = block_rows * block_tiles, block_tiles * outputs + 2
    pieces = (
        capacity * 8,
        capacity * outputs * 8,
        line * 4,
        line * shape.in_channels * value_bytes,
        (outputs + 2) * capacity * panel * value_bytes,
        0 if task.channels_last else capacity * outputs * panel * value_bytes,
        (outputs + 2)
        * block_tiles
        * (block_rows + shape.kernel[1] - 1)
        * shape.in_channels
        * value_bytes,
        64,
    )
    return BlockPlan(block_rows, block_tiles, parts, sum(-(-each // 64) * 64 for each in pieces))


def schedule_task(task: WindowTask) -> ConvSchedule:
    """The schedule for one pass over windows."""
    machine = this_machine()
    is_specialised = task.flops >= SPECIALISED_FLOPS
    lanes = machine.lanes(_sum_bytes(task))
    if can_slide(task) and task.flops >= SLIDING_FLOPS:
        rows, pixels = choose_sliding_tile(task)
        return ConvSchedule("sliding", rows, pixels, strip_bytes=SLIDING_BYTES)
    if is_channelwise(task):
        return ConvSchedule("depthwise", *DEPTHWISE_TILE, is_specialised=False, strip_bytes=0)
    if prefers_planes(task, lanes):
        rows, vectors = _choose_planar_tile(task)
        return ConvSchedule("planar", rows, vectors, is_specialised=False, strip_bytes=PLANE_BYTES)
    # General kernels all have the same tile, so that few of them are ever compiled.
    rows, vectors = (
        _choose_tile(task.shape.out_channels, lanes, machine)
        if is_specialised
        else machine.tiles()[0]
    )
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
    grouped      whole small groups side by side in a vector, channels last
    winograd     F(4, 3) and F(2, 3), where the problem is not exact
    ===========  =====================================================================================
    """
    task = forward_task(problem, sizes[0], sizes[1:])
    lanes = this_machine().lanes(_sum_bytes(task))
    first = choose_schedule(problem, sizes, 1)
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
        tiles = ((8, 1), (4, 3), (2, 4)) if task.channels_last else ((8, 1), (4, 1))
        others += [ConvSchedule("sliding", *tile, strip_bytes=SLIDING_BYTES) for tile in tiles]
    if can_group(task):
        others += [ConvSchedule("grouped", pixels, 1, strip_bytes=0) for pixels in (8, 12)]
    if not problem.exact and can_use_winograd(task):
        others += [winograd_schedule(task, outputs) for outputs in (4, 2)]
    return tuple(dict.fromkeys((first, *others)))


def tuning_key(problem: ConvProblem, sizes: Sizes, threads: int) -> str:
    """What a measurement holds for, besides the processor."""
    return f"conv schedule {problem.describe()} {'x'.join(map(str, sizes))} threads {threads}"


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

    Sums, the weights of one kernel column and one image value share sixteen registers. Channels-last
    rows of a power of two of bytes fall into the same sets of the first-level cache, so tiles of low
    kernels are wide rather than high: 4x3 took 129 us where 8x1 took 204 (128 channels, 56x56).
    """
    if not task.channels_last or task.shape.kernel[1] > 3:
        return 8, 1
    return (4, 3) if task.shape.stride[1] == 1 else (2, 4)


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


def plan_sliding(task: WindowTask, schedule: ConvSchedule) -> BlockPlan:
    """Cut contiguous images into blocks of rows that fit the schedule's strips."""
    shape, value_bytes = task.shape, _sum_bytes(task)
    reach = (shape.kernel[2] - 1) * shape.dilation[2] + 1
    columns = (task.out_sizes[2] - 1) * shape.stride[2] + reach
    height = task.out_sizes[1]
    if task.channels_last:
        return BlockPlan(height, task.out_sizes[2], 1, -(-columns * 8 // 64) * 64)
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
    block_rows = _even_part(height, max(fitting, default=min(8, height)))
    map_bytes = -(-columns * 8 // 64) * 64
    return BlockPlan(
        block_rows, task.out_sizes[2], 1, map_bytes + -(-band_bytes(block_rows) // 64) * 64
    )


def is_channelwise(task: WindowTask) -> bool:
    """Whether vectors of channels work without packing: depthwise, channels last, inner windows."""
    shape = task.shape
    edge_outputs = (shape.kernel[2] - 1) * shape.dilation[2] / shape.stride[2]
    return (
        task.channels_last
        and shape.in_channels == shape.out_channels == 1
        and shape.groups >= this_machine().lanes(_sum_bytes(task))
        and edge_outputs < 0.4 * task.out_sizes[2]
    )


def prefers_planes(task: WindowTask, lanes: int) -> bool:
    """Whether vectors along the width are fuller than vectors of output channels.

    Contiguous images of few channels also prefer them: neither their input nor their output is
    then transposed. That was measured to pay from windows of about a hundred values on, and for one
    channel always: the output is then most of what moves.
    """
    channels, width = task.shape.out_channels, task.out_sizes[2]
    filled_channels = channels / (-(-channels // lanes) * lanes)
    filled_width = width / (-(-width // lanes) * lanes)
    if channels <= lanes:
        return filled_channels < 1.25 * filled_width
    window_values = task.shape.in_channels * math.prod(task.shape.kernel)
    return (
        not task.channels_last
        and task.shape.in_channels < lanes
        and (window_values >= 100 or task.shape.in_channels == 1)
        and width >= 4 * lanes
        and filled_width > 0.9
    )


# Register tiles of the planar kernel by output channels of a group: 12 sums each.
_PLANAR_TILES = {1: (1, 12), 2: (2, 6), 3: (3, 4)}


def _choose_planar_tile(task: WindowTask) -> tuple[int, int]:
    channels = task.shape.out_channels
    if channels in _PLANAR_TILES:
        return _PLANAR_TILES[channels]
    return (3, 4) if channels % 3 == 0 and channels % 4 else (4, 3)


def _choose_tile(out_channels: int, lanes: int, machine: VectorMachine) -> tuple[int, int]:
    """The tile with the fewest idle lanes; among equals, the machine's favourite."""
    vectors_needed = -(-out_channels // lanes)

    def cost(tile: tuple[int, int]) -> float:
        # Tiles in full panels run at full speed; a narrower last panel has fewer sums in flight.
        rows, vectors = tile
        full, tail = divmod(vectors_needed, vectors)
        cycles = full * vectors / 2
        if tail:
            cycles += max(tail / 2, 4 / rows, (tail + rows) / rows / 2)
        return cycles * (1 if vectors > 1 else 1.1)

    return min(machine.tiles(), key=cost)


def plan_blocks(task: WindowTask, schedule: ConvSchedule, threads: int) -> BlockPlan:
    """Cut the output into blocks whose windows fit the schedule's strips.

    Neither the order of a sum nor its chunks depend on the cut, so results do not depend on it.
    """
    panel = schedule.vectors * this_machine().lanes(_sum_bytes(task))
    block_rows, block_columns = _cut_output(task, schedule, threads)
    rows, columns = task.batch * task.out_sizes[0] * task.out_sizes[1], task.out_sizes[2]
    blocks = -(-rows // block_rows) * -(-columns // block_columns) * task.shape.groups
    # Few blocks would leave threads idle: then several threads share one, by output channels.
    panels = -(-task.shape.out_channels // panel)
    parts = min(panels, threads) if blocks < 3 * threads and blocks % threads else 1
    layout = choose_windows(task, schedule)
    packed = _window_bytes(task, layout, block_rows, block_columns)
    return BlockPlan(
        block_rows,
        block_columns,
        parts,
        _thread_bytes(task, block_rows * block_columns, block_columns, panel)
        + (0 if layout == "in_place" else packed),
    )


def choose_windows(task: WindowTask, schedule: ConvSchedule) -> str:
    """Where a schedule reads windows: `strips`, `rows` or `in_place` (see `WindowTask.windows`)."""
    if schedule.strip_bytes is None:
        return "strips"
    # General kernels stay few: only single rows are read in place.
    is_general = not schedule.is_specialised and task.shape.window_rows > 1
    return schedule.windows or ("strips" if is_general else task.windows)


def _window_bytes(task: WindowTask, layout: str, rows: int, columns: int) -> int:
    """Bytes under the windows of a block, as they are packed or as they lie in the image."""
    row_bytes = _columns(task, columns) * task.shape.in_channels * _sum_bytes(task)
    if layout == "strips":
        return rows * task.shape.window_rows * row_bytes
    # Neighbouring output rows share image rows, unless another image or depth begins in between.
    reach = (task.shape.kernel[1] - 1) * task.shape.dilation[1] + 1
    stride, height = task.shape.stride[1], task.out_sizes[1]
    bands = min(task.batch * task.out_sizes[0], (rows + height - 2) // height + 1)
    return (rows * stride + bands * max(0, reach - stride)) * task.shape.kernel[0] * row_bytes


def plan_groups(task: WindowTask) -> int:
    """Bytes of one thread's workspace for the grouped kernel: lines, taps and a column map."""
    columns = (task.out_sizes[2] - 1) * task.shape.stride[2]
    columns += (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    values = 2 * task.shape.kernel[0] * task.shape.kernel[1] + columns
    return -(-values * 8 // 64) * 64


def plan_rows(task: WindowTask) -> int:
    """Bytes of one thread's workspace for the depthwise kernel: row pointers and a column map."""
    window_rows = task.shape.kernel[0] * task.shape.kernel[1]
    columns = (task.out_sizes[2] - 1) * task.shape.stride[2]
    columns += (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    return -(-window_rows * 8 // 64) * 64 + -(-columns * 4 // 64) * 64


def plan_planes(task: WindowTask, schedule: ConvSchedule) -> BlockPlan:
    """Cut the output into blocks of rows whose packed planes fit the schedule's strips."""
    value_bytes = _sum_bytes(task)
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
        return _even_part(height, rows)

    # Rows and columns at the edges of a block are packed again by its neighbour: of the widths that
    # fill register tiles, the one that packs the fewest values per output.
    tile = schedule.vectors * lanes
    widths = {width} | {tile * count for count in (1, 2, 4, 8, 16, 32) if tile * count < width}
    fitting = [each for each in widths if planes_bytes(1, each) <= 2 * budget] or [min(widths)]
    columns = min(
        sorted(fitting, reverse=True),
        key=lambda each: planes_bytes(largest_rows(each), each) / (largest_rows(each) * each),
    )
    rows = largest_rows(columns)
    pitch = -(-columns // lanes) * lanes + (reach - 1) // shape.stride[2] + lanes
    pieces = (
        shape.kernel[0] * shape.kernel[1] * shape.kernel[2] * 8,
        phases * pitch * 4,
        planes_bytes(rows, columns),
        64,
    )
    return BlockPlan(rows, columns, 1, sum(-(-piece // 64) * 64 for piece in pieces))


def _cut_output(task: WindowTask, schedule: ConvSchedule, threads: int) -> tuple[int, int]:
    """Rows and columns of a block."""
    rows, columns = task.batch * task.out_sizes[0] * task.out_sizes[1], task.out_sizes[2]
    if schedule.strip_bytes is None:
        return task.out_sizes[0] * task.out_sizes[1], columns
    limit = min(4096, _pixels_beside_weights(task, schedule.strip_bytes))
    layout, budget = choose_windows(task, schedule), schedule.strip_bytes

    def fits(width: int, height: int) -> bool:
        return _window_bytes(task, layout, height, width) <= budget

    narrowest = min(columns, schedule.rows)
    widest = _largest(narrowest, min(columns, limit), lambda width: fits(width, 1))
    # The block of the most pixels; a wide one if it has nearly as many, because narrow ones share less.
    block_rows, block_columns = 1, narrowest
    fewest = -(-columns // widest)
    for parts in range(fewest, fewest + 16):
        width = _even_part(columns, -(-columns // parts))
        if width < narrowest:
            break
        most = max(1, min(rows, limit // width))
        height = _even_part(rows, _largest(1, most, partial(fits, width)))
        if height * width > 1.1 * block_rows * block_columns:
            block_rows, block_columns = height, width
            if height * width >= limit / 2:
                break
    column_blocks = -(-columns // block_columns)
    # Some blocks per thread even out the load, as long as a block still fills its tiles.
    wanted = -(-4 * threads // column_blocks)
    if threads > 1 and -(-rows // block_rows) < wanted and rows * block_columns >= 64 * wanted:
        block_rows = -(-rows // wanted)
    return _even_part(rows, block_rows), block_columns


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `low` to `high` that fits, as all below it do; `low` if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _pixels_beside_weights(task: WindowTask, budget: int) -> int:
    """Pixels of a block whose outputs stay in cache with small weights; large ones want many pixels."""
    shape, value_bytes = task.shape, _sum_bytes(task)
    weight_bytes = shape.in_channels * math.prod(shape.kernel) * shape.out_channels * value_bytes
    if weight_bytes > budget:
        return 4096
    return max(64, budget // (shape.out_channels * value_bytes))


def _even_part(total: int, largest: int) -> int:
    """The size of about equal parts of at most `largest`."""
    return -(-total // -(-total // largest))


def _column_step(task: WindowTask) -> int:
    kernel, stride, dilation = task.shape.kernel[2], task.shape.stride[2], task.shape.dilation[2]
    return kernel if kernel < stride and dilation == 1 else stride


def _columns(task: WindowTask, outputs: int) -> int:
    reach = (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    return (outputs - 1) * _column_step(task) + reach


def _sum_bytes(task: WindowTask) -> int:
    return 8 if task.dtype.itemsize == 8 else 4


def _thread_bytes(task: WindowTask, pixels: int, block_columns: int, panel: int) -> int:
    """Workspace of one thread besides its strips, as the kernels carve it; the last line is slack."""
    value_bytes = _sum_bytes(task)
    capacity = pixels + this_machine().lanes(value_bytes)
    pieces = (
        capacity * 8, capacity * 8, capacity * panel * value_bytes, _columns(task, block_columns) * 4,
        math.prod(task.shape.kernel) * 8, 64,
    )  # fmt: skip
    return sum(-(-piece // 64) * 64 for piece in pieces)


@dataclass(frozen=True)
class GradientPlan:
    """How the gradient of the weights is cut into tasks, and the pixels into blocks."""

    block_rows: int
    block_columns: int
    panel_parts: int
    channel_chunk: int
    thread_bytes: int


# Pixels per block of the weight gradient: their windows' lines and the gradients of one panel fit
# the first-level cache together, and the sums are loaded and stored once for that many FMAs.
GRADIENT_PIXELS = 144


def plan_gradient(task: WindowTask, schedule: ConvSchedule, threads: int) -> GradientPlan:
    """Cut the weights into parts for threads, and the pixels into blocks."""
    value_bytes = _sum_bytes(task)
    panel = schedule.vectors * this_machine().lanes(value_bytes)
    rows, columns = task.batch * task.out_sizes[0] * task.out_sizes[1], task.out_sizes[2]
    block_columns = _even_part(columns, 2 * GRADIENT_PIXELS)
    block_rows = max(1, min(rows, GRADIENT_PIXELS // block_columns))
    window_rows = task.shape.kernel[0] * task.shape.kernel[1]
    channel_bytes = block_rows * _columns(task, block_columns) * window_rows * value_bytes
    channels = task.shape.in_channels
    budget = schedule.strip_bytes or second_level_cache_bytes() // 2
    chunk = min(channels, max(8, budget // channel_bytes // 8 * 8))
    panels = -(-task.shape.out_channels // panel)
    parts = 1
    if threads > 1:
        chunk = min(chunk, max(min(channels, 8), _even_part(channels, -(-channels // threads))))
        pieces = -(-channels // chunk) * task.shape.groups
        parts = min(panels, threads) if pieces % threads and pieces < 4 * threads else 1
    line = 64 // value_bytes
    pitch = (-(-window_rows * chunk // line) | 1) * line
    strips = block_rows * _columns(task, block_columns) * pitch * value_bytes
    return GradientPlan(
        block_rows,
        block_columns,
        parts,
        chunk,
        _thread_bytes(task, block_rows * block_columns, block_columns, panel) + strips,
    )
