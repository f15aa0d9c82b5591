"""How the gradient of the weights is cut: pixels into blocks and stretches, weights into parts for threads.

Each block and each stretch is summed by itself, so their cut decides bits: it never depends on threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shorthaul.conv.cuts import block_bytes, carved_bytes, columns_under, even_part
from shorthaul.conv.geometry import WindowTask
from shorthaul.conv.machine import second_level_cache_bytes, this_machine
from shorthaul.conv.schedule import DEPTHWISE_TILE, ConvSchedule


@dataclass(frozen=True)
class GradientPlan:
    """How the gradient of the weights is cut into tasks, and the pixels into blocks."""

    block_rows: int
    block_columns: int
    panel_parts: int
    channel_chunk: int
    stretches: int  # of blocks, each summed into weights of its own and then added up in order
    thread_bytes: int


# Packed weights of up to so many bytes are summed in so many stretches, however many threads there are:
# threads then share the pixels, where sharing the weights would have each of them pack every pixel.
# Every stretch has weights of its own.
STRETCHES = {64 * 1024: 8, 256 * 1024: 2}
# Pixels per block of the weight gradient: the sums are loaded and stored once for that many FMAs, and the
# windows' lines and the gradients of one panel, of which so many bytes, fit the first-level cache together.
GRADIENT_PIXELS = 144
GRADIENT_BYTES = 24 * 1024


def plan_gradient(task: WindowTask, schedule: ConvSchedule, threads: int) -> GradientPlan:
    """Cut the weights into parts for threads, and the pixels into blocks.

    Threads that share a stretch have whole panels each, or else channels: either way a thread's sums lie in
    one piece. Those of others in between would be fetched ahead, again and again, from the thread that has
    them (conv9 on two distant cores: 4.5 ms with channels of both in turn, 3.9 in one piece).
    """
    value_bytes = task.sum_bytes
    panel = schedule.vectors * this_machine().lanes(value_bytes)
    rows, columns = task.batch * task.out_sizes[0] * task.out_sizes[1], task.out_sizes[2]
    wanted = min(GRADIENT_PIXELS, GRADIENT_BYTES // (panel * value_bytes))
    block_columns = even_part(columns, 2 * wanted)
    block_rows = max(1, min(rows, round(wanted / block_columns)))
    if rows * columns <= 2 * wanted:
        # Few pixels are one block: the weights, which are the larger part then, are gone over once.
        block_rows = rows
    window_rows = task.shape.kernel[0] * task.shape.kernel[1]
    channel_bytes = block_rows * columns_under(task, block_columns) * window_rows * value_bytes
    channels = task.shape.in_channels
    budget = schedule.strip_bytes or second_level_cache_bytes() // 2
    chunk = min(channels, max(8, budget // channel_bytes // 8 * 8))
    panels = -(-task.shape.out_channels // panel)
    window_values = channels * math.prod(task.shape.kernel)
    packed_bytes = task.shape.groups * window_values * panels * panel * value_bytes
    blocks = -(-rows // block_rows) * -(-columns // block_columns)
    fitting = (count for size, count in STRETCHES.items() if packed_bytes <= size)
    stretches = next((count for count in fitting if blocks >= 4 * count), 1)
    parts, sharing = 1, -(-threads // stretches)
    if sharing > 1 and panels % sharing == 0:
        parts = sharing
    elif sharing > 1:
        chunk = min(chunk, max(min(channels, 8), even_part(channels, -(-channels // sharing))))
        pieces = -(-channels // chunk) * task.shape.groups
        parts = min(panels, sharing) if pieces % sharing and pieces < 4 * sharing else 1
    line = 64 // value_bytes
    pitch = (-(-window_rows * chunk // line) | 1) * line
    strips = block_rows * columns_under(task, block_columns) * pitch * value_bytes
    pixels = block_rows * block_columns
    places = 8 * (pixels + this_machine().lanes(value_bytes))  # of the gradients of a panel
    return GradientPlan(
        block_rows,
        block_columns,
        parts,
        chunk,
        stretches,
        block_bytes(task, pixels, block_columns, panel) + carved_bytes(places, strips),
    )


# Depthwise weights are few: their rows are always shared. Each stretch is worth its addition from so many on.
STRETCH_ROWS = 8


def plan_depthwise_gradient(task: WindowTask, threads: int) -> tuple[int, int]:
    """Parts of the channels, for threads, and stretches of the rows, however many threads there are."""
    rows = task.batch * task.out_sizes[0] * task.out_sizes[1]
    stretches = max(1, min(max(STRETCHES.values()), rows // STRETCH_ROWS))
    _, vectors = DEPTHWISE_TILE
    blocks = -(-task.shape.groups // (vectors * this_machine().lanes(task.sum_bytes)))
    return min(blocks, -(-threads // stretches)), stretches
