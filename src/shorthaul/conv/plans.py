"""How the output of one call is cut into blocks: what fits the caches, and the workspace that it takes.

Neither the order of a sum nor its chunks depend on the cut, so results do not depend on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shorthaul.conv.cuts import block_bytes, carved_bytes, columns_under, even_part
from shorthaul.conv.emit_window import has_even_steps
from shorthaul.conv.geometry import WindowTask
from shorthaul.conv.machine import second_level_cache_bytes, this_machine
from shorthaul.conv.schedule import (
    PLANE_BYTES,
    SLIDING_BYTES,
    SWEEP_BYTES,
    TALL_BYTES,
    ConvSchedule,
    count_bundled,
    has_much_padding,
    sweep_machine,
)
from shorthaul.errors import ConvolutionError


@dataclass(frozen=True)
class BlockPlan:
    """How the output of one call is cut into tasks for threads."""

    block_rows: int
    block_columns: int
    panel_parts: int
    thread_bytes: int


def plan_winograd(task: WindowTask, schedule: ConvSchedule, threads: int) -> BlockPlan:
    """Cut the output into blocks of rows and tiles whose transformed rows fit the strips."""
    outputs = int(schedule.method.removeprefix("winograd"))
    shape, value_bytes = task.shape, task.sum_bytes
    panel = schedule.vectors * this_machine().lanes(value_bytes)
    height, tiles = task.out_sizes[1], -(-task.out_sizes[2] // outputs)
    budget = schedule.strip_bytes or second_level_cache_bytes() // 2

    def tile_bytes(rows: int) -> int:
        band = rows + shape.kernel[1] - 1
        transformed = (outputs + 2) * band * shape.in_channels
        return (transformed + (outputs + 2) * rows * panel) * value_bytes

    # Rows at the edge of a block are transformed again by its neighbour: high blocks first.
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
    block_rows = _share_rows(
        height, even_part(height, block_rows), most_rows, images, panels, threads
    )
    blocks = images * -(-height // block_rows)
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
    return BlockPlan(block_rows, block_tiles, parts, carved_bytes(*pieces))


def plan_sliding(task: WindowTask, schedule: ConvSchedule) -> BlockPlan:
    """Cut contiguous images into blocks of rows that fit the schedule's strips."""
    shape, value_bytes = task.shape, task.sum_bytes
    reach = (shape.kernel[2] - 1) * shape.dilation[2] + 1
    columns = (task.out_sizes[2] - 1) * shape.stride[2] + reach
    height = task.out_sizes[1]
    if task.channels_last:
        return BlockPlan(height, task.out_sizes[2], 1, carved_bytes(columns * 8))
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
    return BlockPlan(
        block_rows, task.out_sizes[2], 1, carved_bytes(columns * 8, band_bytes(block_rows))
    )


def plan_tall(task: WindowTask, schedule: ConvSchedule, threads: int) -> BlockPlan:
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

    # Rows and columns at the edges of a block are packed again by its neighbour: of the widths, the one
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
    rows = _share_rows(height, wanted, most, others, 1, threads)
    pieces = (
        columns_under(task, columns) * 4, columns * 8, schedule.rows * columns * vector_bytes,
        (rows + above) * row_bytes(columns),
    )  # fmt: skip
    return BlockPlan(rows, columns, 1, carved_bytes(*pieces))


def bundles_together(task: WindowTask) -> int:
    """Bundles of groups that the sweep kernel packs at once: those that share cache lines of a channels-last image."""
    bundled = count_bundled(task)
    channels = bundled * task.shape.in_channels
    sharing = 64 // task.dtype.itemsize // channels if task.channels_last else 1
    return max(1, min(sharing, task.shape.groups // bundled))


def plan_sweep(task: WindowTask, schedule: ConvSchedule, threads: int) -> BlockPlan:
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
    columns = even_part(width, _largest(1, width, lambda each: packed_bytes(least, each) <= budget))
    most = _largest(least, height, lambda each: packed_bytes(each, columns) <= budget)
    others = task.batch * task.out_sizes[0] * -(-width // columns)
    others *= -(-shape.groups // count_bundled(task) // bundles_together(task))
    rows = _share_rows(height, even_part(height, most), most, others, 1, threads)
    lanes = sweep_machine(task).lanes(value_bytes)
    pieces = (
        columns_under(task, columns) * 4, columns * 8, columns * schedule.rows * lanes * value_bytes,
        packed_bytes(rows, columns),
    )  # fmt: skip
    return BlockPlan(rows, columns, 1, carved_bytes(*pieces))


def plan_blocks(task: WindowTask, schedule: ConvSchedule, threads: int) -> BlockPlan:
    """Cut the output into blocks whose windows fit the schedule's strips."""
    panel = schedule.vectors * this_machine().lanes(task.sum_bytes)
    block_rows, block_columns = _cut_output(task, schedule, threads)
    rows, columns = task.batch * task.out_sizes[0] * task.out_sizes[1], task.out_sizes[2]
    blocks = -(-rows // block_rows) * -(-columns // block_columns) * task.shape.groups
    # Few blocks would leave threads idle: then several threads share one, by output channels.
    panels = -(-task.shape.out_channels // panel)
    parts = min(panels, threads) if blocks < 3 * threads and blocks % threads else 1
    layout = choose_windows(task, schedule)
    skips = skips_padding(task, schedule)
    has_classes = layout == "rows" or skips
    packed = _window_bytes(task, layout, block_rows, block_columns, skips=skips)
    return BlockPlan(
        block_rows,
        block_columns,
        parts,
        block_bytes(task, block_rows * block_columns, block_columns, panel)
        + (0 if layout == "in_place" else carved_bytes(packed))
        + (_class_bytes(task, block_rows, block_columns) if has_classes else 0),
    )


def choose_windows(task: WindowTask, schedule: ConvSchedule) -> str:
    """Where a schedule reads windows: `strips`, `rows` or `in_place` (see `WindowTask.windows`).

    In place also where windows reach into padding whose taps are left out.
    """
    if schedule.windows is not None and not task.can_read(schedule.windows):
        raise ConvolutionError(
            f"a schedule reads the windows of {task.shape.describe()} from `{schedule.windows}`, where "
            f"they are not: leave `windows` to the plan, which takes `{task.windows}`."
        )
    if schedule.strip_bytes is None:
        return "strips"
    # General kernels stay few: only single rows are read in place.
    is_general = not schedule.is_specialised and task.shape.window_rows > 1
    # Pairs are summed in the order of their layout, which must not depend on what is specialised.
    is_general = is_general and not task.has_pairs
    if schedule.windows or is_general:
        return schedule.windows or "strips"
    return "in_place" if _reads_around_padding(task, schedule) else task.windows


def _reads_around_padding(task: WindowTask, schedule: ConvSchedule) -> bool:
    """Whether rows need no packing, because nothing but zeros would be added to them, and no tap reads those.

    However little padding there is: 64 channels, 3x3 on 56x56 images ran at 0.95 of the peak from packed
    rows and run at 0.99.
    """
    has_even = has_even_steps("in_place", schedule.rows, task.shape.in_channels)
    return (
        task.windows == "rows"
        and task.is_readable
        and not task.has_pairs
        and schedule.is_specialised
        and task.padding_share > 0
        and not has_even
    )


def can_join_columns(task: WindowTask, schedule: ConvSchedule) -> bool:
    """Whether a row of a window is read as one run, which changes the order of its sum.

    Only pairs are: an odd number of channels fills them up, and short runs are fewer. Not where taps in
    zero padding are left out one by one, nor where other columns or channels lie in between.
    """
    layout = choose_windows(task, schedule)
    return (
        task.has_pairs
        and task.shape.window_rows > 1
        and task.shape.dilation[2] == 1
        and (
            (layout == "rows" and not has_much_padding(task))
            or (layout == "in_place" and task.shape.groups == 1)
        )
    )


def skips_padding(task: WindowTask, schedule: ConvSchedule) -> bool:
    """Whether a call leaves out the taps that read zeros of the padding, and packs none of these zeros."""
    layout = choose_windows(task, schedule)
    if layout == "in_place":
        return task.windows != "in_place"
    is_even = schedule.is_specialised and has_even_steps(
        "rows", schedule.rows, task.shape.in_channels
    )
    return (
        layout == "rows"
        and task.shape.kernel[1] > 1
        and has_much_padding(task)
        and not (is_even or can_join_columns(task, schedule))
    )


def _window_bytes(task: WindowTask, layout: str, rows: int, columns: int, *, skips: bool) -> int:
    """Bytes under the windows of a block, as they are packed or as they lie in the image."""
    shape, packed_columns = task.shape, columns_under(task, columns)
    if skips and shape.kernel[2] >= shape.stride[2]:
        packed_columns = min(packed_columns, task.in_sizes[2])
    row_bytes = packed_columns * shape.in_channels * task.packed_bytes
    if layout == "strips":
        return rows * shape.window_rows * row_bytes
    # Neighbouring output rows share image rows, unless another image or depth begins in between.
    reach = (shape.kernel[1] - 1) * shape.dilation[1] + 1
    stride, height = shape.stride[1], task.out_sizes[1]
    planes = task.batch * task.out_sizes[0]
    is_whole = rows % height == 0 and planes * height % rows == 0
    bands = rows // height if is_whole else min(planes, (rows + height - 2) // height + 1)
    lines = rows * stride + bands * max(0, reach - stride)
    if skips:
        lines = min(lines, bands * task.in_sizes[1])
    return lines * shape.kernel[0] * row_bytes


def plan_groups(task: WindowTask) -> int:
    """Bytes of one thread's workspace for the grouped kernel: lines, taps and a column map."""
    columns = (task.out_sizes[2] - 1) * task.shape.stride[2]
    columns += (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    values = 2 * task.shape.kernel[0] * task.shape.kernel[1] + columns
    return carved_bytes(values * 8)


def plan_rows(task: WindowTask) -> int:
    """Bytes of one thread's workspace for the depthwise kernel: row pointers and a column map."""
    window_rows = task.shape.kernel[0] * task.shape.kernel[1]
    columns = (task.out_sizes[2] - 1) * task.shape.stride[2]
    columns += (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    return carved_bytes(window_rows * 8, columns * 4)


def plan_planes(task: WindowTask, schedule: ConvSchedule, threads: int) -> BlockPlan:
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

    # Rows and columns at the edges of a block are packed again by its neighbour: of the widths that
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
    pieces = (
        shape.kernel[0] * shape.kernel[1] * shape.kernel[2] * 8,
        phases * pitch * 4,
        phases * 32,
        planes_bytes(rows, columns),
        64,
    )
    return BlockPlan(rows, columns, 1, carved_bytes(*pieces))


def _cut_output(task: WindowTask, schedule: ConvSchedule, threads: int) -> tuple[int, int]:
    """Rows and columns of a block."""
    rows, columns = task.batch * task.out_sizes[0] * task.out_sizes[1], task.out_sizes[2]
    panel = schedule.vectors * this_machine().lanes(task.sum_bytes)
    panels = -(-task.shape.out_channels // panel)
    if schedule.strip_bytes is None:
        return task.out_sizes[0] * task.out_sizes[1], columns
    images = _count_whole_images(task, schedule, threads)
    if images:
        return images * task.out_sizes[1], columns
    limit = min(4096, _pixels_beside_weights(task, schedule.strip_bytes))
    budget = _window_budget(task, schedule)

    layout, skips = choose_windows(task, schedule), skips_padding(task, schedule)

    def fits(width: int, height: int) -> bool:
        return _window_bytes(task, layout, height, width, skips=skips) <= budget

    narrowest = min(columns, schedule.rows)
    widest = _largest(narrowest, min(columns, limit), lambda width: fits(width, 1))
    # The block of the most pixels; a wide one if it has nearly as many, because narrow ones share less.
    block_rows, block_columns = 1, narrowest
    fewest = -(-columns // widest)
    for parts in range(fewest, fewest + 16):
        width = even_part(columns, -(-columns // parts))
        if width < narrowest:
            break
        most = max(1, min(rows, limit // width))
        height = even_part(rows, _largest(1, most, partial(fits, width)))
        if height * width > 1.1 * block_rows * block_columns:
            block_rows, block_columns = height, width
            if height * width >= limit / 2:
                break
    column_blocks, most_rows = -(-columns // block_columns), block_rows
    # Some blocks per thread even out the load, as long as a block still fills its tiles.
    wanted = -(-4 * threads // column_blocks)
    if threads > 1 and -(-rows // block_rows) < wanted and rows * block_columns >= 64 * wanted:
        block_rows = -(-rows // wanted)
    others = column_blocks * task.shape.groups
    wanted_rows = even_part(rows, block_rows)
    return _share_rows(rows, wanted_rows, most_rows, others, panels, threads), block_columns


def _window_budget(task: WindowTask, schedule: ConvSchedule) -> int:
    """Bytes that a block may have under its windows.

    Blocks that skip padding are cut at the edges of classes, too, so they are larger than others
    (gradient of conv8: 0.92 of the peak in whole rows, 0.89 in thirds of them), and larger still where
    nothing is packed (of conv5: 0.84 by one image, 0.93 by two, 0.96 by four).
    """
    strip_bytes = schedule.strip_bytes or 0
    if task.shape.groups > 1 or not skips_padding(task, schedule):
        return strip_bytes
    is_packed = choose_windows(task, schedule) == "rows"
    return strip_bytes * 5 // 3 if is_packed else strip_bytes * 5


def _count_whole_images(task: WindowTask, schedule: ConvSchedule, threads: int) -> int:
    """Images of a block that skips padding and holds them whole, so that threads have equal work; 0 if none.

    A class of pixels that read the same taps fills its tiles by the same rows of several images: a tile
    of one window takes more than twice the time of its share (gradient of conv6: 0.95 of the peak by two
    images, 0.91 by one).
    """
    if task.shape.groups > 1 or not skips_padding(task, schedule):
        return 0
    planes, height, columns = task.batch * task.out_sizes[0], task.out_sizes[1], task.out_sizes[2]
    budget, layout = _window_budget(task, schedule), choose_windows(task, schedule)

    def suits(images: int) -> bool:
        blocks = planes // images
        return (
            planes % images == 0
            and (blocks % threads == 0 or blocks >= 8 * threads)
            and images * height * columns <= 4096
            and _window_bytes(task, layout, images * height, columns, skips=True) <= budget
        )

    return max((images for images in range(1, min(planes, 64) + 1) if suits(images)), default=0)


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
    """Pixels of a block whose outputs stay in cache with small weights; large ones want many pixels.

    Groups of channels-last images share the lines that they read, so a block's image should not be
    gone before the next group comes: 8 channels per group took 14 % less time for it (256, 56x56).
    """
    shape, value_bytes = task.shape, task.sum_bytes
    weight_bytes = shape.in_channels * math.prod(shape.kernel) * shape.out_channels * value_bytes
    pixels = 4096 if weight_bytes > budget else budget // (shape.out_channels * value_bytes)
    if task.channels_last and shape.groups > 1:
        pixel_bytes = shape.groups * shape.in_channels * value_bytes
        pixels = min(pixels, 2 * second_level_cache_bytes() // pixel_bytes)
    return max(64, pixels)


def _share_rows(rows: int, wanted: int, most: int, others: int, panels: int, threads: int) -> int:
    """Rows of a block: about `wanted`, at most `most`, and so that threads have about equal work.

    `others` blocks lie beside each block of rows. Threads take equal numbers of blocks, as far as that
    goes, and blocks differ by at most one row. Fewer blocks than threads are left as they are where
    threads can share those by panels of output channels.
    """
    if -(-rows // wanted) * others < threads and panels % threads == 0:
        return wanted

    def largest_share(size: int) -> float:
        blocks = -(-rows // size)
        ends = [blocks * others * thread // threads / others for thread in range(threads + 1)]
        at = [rows * int(end) // blocks + (end % 1) * rows / blocks for end in ends]
        return max(after - before for before, after in itertools.pairwise(at)) * threads / rows

    sizes = range(max(1, (wanted + 1) // 2), min(most, 2 * wanted) + 1)
    best = min(sizes, key=lambda size: (round(largest_share(size), 2), abs(size - wanted)))
    return even_part(rows, best)


def _class_bytes(task: WindowTask, rows: int, columns: int) -> int:
    """Workspace for classes of pixels that read the same taps: their runs, places and stretches."""
    capacity = rows * columns + this_machine().lanes(task.sum_bytes)
    pieces = (
        math.prod(task.shape.kernel) * 16, capacity * 8, rows * 8, rows * 8, rows * 32, columns * 32,
    )  # fmt: skip
    return carved_bytes(*pieces)
