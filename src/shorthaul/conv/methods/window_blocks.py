"""How the window kernel cuts the output of a call into blocks: what fits the caches, and where windows are read.

Neither the order of a sum nor its chunks depend on the cut, so results do not depend on it.
"""

from __future__ import annotations

import math
from functools import partial

from shorthaul.conv.layout.workspace import (
    LINE_BYTES,
    columns_under,
    even_part,
    find_largest,
    share_rows,
)
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.window_kernel import WORKSPACE, WindowNumbers, has_even_steps
from shorthaul.conv.problem.geometry import WindowTask
from shorthaul.conv.problem.machine import second_level_cache_bytes, this_machine
from shorthaul.errors import ConvolutionError

# Below this share of the products, tiles that end where other taps are read cost as much as the zeros.
MUCH_PADDING = 0.03


def has_much_padding(task: WindowTask) -> bool:
    """Whether the window kernel leaves out the taps that read zeros of the padding from packed rows.

    It does so unless its tiles rely on even steps from window to window, for a whole call or not at all.
    """
    return task.padding_share >= MUCH_PADDING


def plan_blocks(task: WindowTask, schedule: ConvSchedule, threads: int) -> WindowNumbers:
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
    capacity = block_rows * block_columns + this_machine().lanes(task.sum_bytes)
    taps = math.prod(task.shape.kernel)
    of_classes = 1 if has_classes else 0
    carved = WORKSPACE.carve(
        task.sum_bytes,
        task.packed_bytes,
        slack_bytes=LINE_BYTES,
        window_offsets=capacity,
        output_offsets=capacity,
        stage=capacity * panel,
        columns=columns_under(task, block_columns),
        window_runs=taps,
        class_runs=of_classes * taps,
        places_of_pixels=of_classes * capacity,
        sorted_rows=of_classes * block_rows,
        row_places=of_classes * block_rows,
        row_stretches=of_classes * block_rows,
        column_stretches=of_classes * block_columns,
        packed=0 if layout == "in_place" else packed // task.packed_bytes,
    )
    return WindowNumbers(
        carved.thread_bytes,
        block_rows,
        block_columns,
        parts,
        schedule.depth_chunk,
        int(skips),
        carved.places,
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
    is_general = not schedule.is_specialized and task.shape.window_rows > 1
    # Pairs are summed in the order of their layout, which must not depend on what is specialized.
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
        and schedule.is_specialized
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
    is_even = schedule.is_specialized and has_even_steps(
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
    # Neighboring output rows share image rows, unless another image or depth begins in between.
    reach = (shape.kernel[1] - 1) * shape.dilation[1] + 1
    stride, height = shape.stride[1], task.out_sizes[1]
    planes = task.batch * task.out_sizes[0]
    is_whole = rows % height == 0 and planes * height % rows == 0
    bands = rows // height if is_whole else min(planes, (rows + height - 2) // height + 1)
    lines = rows * stride + bands * max(0, reach - stride)
    if skips:
        lines = min(lines, bands * task.in_sizes[1])
    return lines * shape.kernel[0] * row_bytes


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
    widest = find_largest(narrowest, min(columns, limit), lambda width: fits(width, 1))
    # The block of the most pixels; a wide one if it has nearly as many, because narrow ones share less.
    block_rows, block_columns = 1, narrowest
    fewest = -(-columns // widest)
    for parts in range(fewest, fewest + 16):
        width = even_part(columns, -(-columns // parts))
        if width < narrowest:
            break
        most = max(1, min(rows, limit // width))
        height = even_part(rows, find_largest(1, most, partial(fits, width)))
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
    return share_rows(rows, wanted_rows, most_rows, others, panels, threads), block_columns


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
