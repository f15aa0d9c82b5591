"""The window method: windows that overlap in memory, times panels of weights. It computes everything."""

from __future__ import annotations

import math
from dataclasses import replace

from shorthaul.conv.layout.function import sum_dtype
from shorthaul.conv.layout.weights import PairedPanels, WeightLayout
from shorthaul.conv.methods.base import SPECIALIZED_FLOPS, ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.window_blocks import (
    can_join_columns,
    choose_windows,
    has_much_padding,
    plan_blocks,
    skips_padding,
)
from shorthaul.conv.methods.window_kernel import (
    emit_window_kernel,
    find_run_order,
    find_window_kernel,
)
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, second_level_cache_bytes, this_machine

# From so many values on, a tile's sums take much longer to make than to write.
LONG_WINDOW = 256


def has_vector_groups(task: WindowTask, lanes: int) -> bool:
    """Whether the outputs of a group are just one vector where the image has them: channels last.

    Rows are packed once for all windows; planes would be transposed on the way in and out. Measured with 8
    channels in and out: 2.7 ms where planes took 3.2 and the grouped kernel 4.4 (256 channels, 56x56).
    """
    shape = task.shape
    is_suited = task.channels_last and task.can_read("rows")
    return is_suited and shape.groups > 1 and shape.out_channels == lanes


def choose_tile(
    task: WindowTask, machine: VectorMachine, *, skips_padding: bool = False
) -> tuple[int, int]:
    """The tile with the fewest idle lanes; among equals, the machine's favorite.

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


class Window(Method):
    """Vectors of output channels."""

    name = "window"
    multiplies_pairs = True
    emit = staticmethod(emit_window_kernel)

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """The tile with the fewest idle lanes, where the work is worth a kernel for its shape."""
        machine, strip_bytes = this_machine(), second_level_cache_bytes() * 3 // 8
        is_specialized = task.flops >= SPECIALIZED_FLOPS
        has_groups = not task.has_pairs and has_vector_groups(task, machine.lanes(task.sum_bytes))
        if is_specialized and has_groups:
            rows, vectors = next(tile for tile in machine.tiles() if tile[1] == 1)
            return ConvSchedule(self.name, rows, vectors, strip_bytes=strip_bytes, windows="rows")
        # General kernels all have the same tile, so that few of them are ever compiled.
        rows, vectors = machine.tiles()[0]
        if is_specialized:
            skips = task.windows == "rows" and has_much_padding(task)
            rows, vectors = choose_tile(task, machine, skips_padding=skips)
        return ConvSchedule(
            self.name,
            rows,
            vectors,
            is_specialized=is_specialized,
            strip_bytes=strip_bytes,
            has_pairs=task.has_pairs,
        )

    def candidates(self, task: WindowTask) -> tuple[ConvSchedule, ...]:
        """Every register tile of the machine."""
        strip_bytes = second_level_cache_bytes() * 3 // 8
        return tuple(
            ConvSchedule(
                self.name, rows, vectors, strip_bytes=strip_bytes, has_pairs=task.has_pairs
            )
            for rows, vectors in this_machine().tiles()
        )

    def refine(self, schedule: ConvSchedule) -> tuple[ConvSchedule, ...]:
        """A kernel for the shape, strips of half the size, and the papers' whole tensor."""
        first = replace(schedule, is_specialized=True)
        if first.has_pairs or not first.strip_bytes:
            return (first,)
        strips = (first.strip_bytes, first.strip_bytes // 2, None)
        return tuple(replace(first, strip_bytes=each) for each in strips)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Panels as wide as a tile; pairs are packed in the order in which they are multiplied."""
        task = replace(task, has_pairs=schedule.has_pairs)
        windows = choose_windows(task, schedule)
        joins_columns = can_join_columns(task, schedule)
        kernel = replace(
            find_window_kernel(task, schedule),
            windows=windows,
            has_prefetch=schedule.has_prefetch,
            has_pairs=schedule.has_pairs,
            joins_columns=joins_columns,
            has_padding=windows == "in_place" and skips_padding(task, schedule),
        ).for_every_width()
        real, panel, lanes = sum_dtype(task.dtype), kernel.panel, kernel.lanes
        weights = WeightLayout(task.shape, real, panel, lanes, taps)
        if schedule.has_pairs:
            order = find_run_order(task.shape, windows, joins_columns=joins_columns)
            weights = PairedPanels(task.shape, real, panel, lanes, taps, run_order=order)
        numbers = plan_blocks(task, schedule, threads)
        return KernelPlan(task, kernel, numbers, weights, kernel.shape)
