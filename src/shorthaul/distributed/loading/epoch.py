"""One epoch of one rank: samples drawn in one thread, rows fetched on the loader's line, in order.

How far ahead that is depends on numbers that all ranks have agreed on, and so never on one rank alone.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from shorthaul.distributed.loading.bytes_ahead import agree_on_sizes, count_ahead
from shorthaul.distributed.loading.drawing import Drawing
from shorthaul.distributed.loading.feature_tables import FeatureTables, TypeAsk
from shorthaul.distributed.loading.rank_batch import RankBatch
from shorthaul.distributed.loading.schedule import Schedule, share_out
from shorthaul.distributed.parts import Parts
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.distributed.tables.row_exchange import Round, announce
from shorthaul.errors import ExchangeError, SamplingError
from shorthaul.graphs import NeighborSample
from shorthaul.graphs.loading.typed_batch import GraphTypes


@dataclass(frozen=True, eq=False)
class Expected:
    """A batch whose sample is drawn and whose rows are on nobody's way yet."""

    sample: NeighborSample | None
    asks: dict[str, TypeAsk]
    global_seeds: int
    problem: Exception | None


class Epoch:
    """Makes its batches one by one; `complete` runs on the loader's line, the rest in the loop's thread."""

    def __init__(
        self,
        schedule: Schedule,
        number: int,
        first_step: int,
        parts: Parts,
        features: FeatureTables,
        labels: DistributedTable | None,
        drawing: Drawing,
        look_ahead: int,
        prefetch: int,
        ahead_bytes: int,
    ) -> None:
        self.schedule, self.number, self.parts = schedule, number, parts
        self.features, self.labels = features, labels
        self.first_step, self.prefetch, self.ahead_bytes = first_step, prefetch, ahead_bytes
        self.look_ahead = max(look_ahead, prefetch)
        self.is_abandoned = False  # another loop, or another position of the loader, took its place
        self._drawing = drawing
        self._order = schedule.order(number)
        self._drawn: dict[int, Future[NeighborSample]] = {}
        self._next_draw = self._next_expected = first_step
        self._global_seeds: dict[int, int] = {}  # by step, written in the thread that draws
        self._expected: dict[int, Expected] = {}
        self._sizes: dict[int, list[int]] = {}  # by step, of the batches after it

    def draw_for(self, step: int) -> None:
        """Have all samples drawn that `complete` of a step looks at, in the thread that draws."""
        stop = min(step + self.look_ahead + 1, self.schedule.steps)
        while self._next_draw < stop:
            step = self._next_draw
            find_seeds = functools.partial(self._find_seeds, step)
            where = f"batch {step:,} of epoch {self.number:,}"
            random_number = (self.number << 32) + step
            self._drawn[step] = self._drawing.submit(where, find_seeds, random_number)
            self._next_draw += 1

    def complete(self, wire: Wire, step: int, round_number: int) -> RankBatch:
        """The batch of a step, its rows fetched from all ranks."""
        if step == self.first_step:
            self.features.forget_expected()  # of an epoch that was left early
        while self._next_expected < min(step + self.look_ahead + 1, self.schedule.steps):
            self._expected[self._next_expected] = self._expect(wire, self._next_expected)
            self._next_expected += 1
        expected = self._expected.pop(step)
        if not self.features.tables:
            this = Round("batches", round_number, self.parts.described)
            announce(wire, this, [], expected.problem)
        features, positions = self.features.fetch(
            wire, expected.asks, expected.problem, round_number
        )
        sample = expected.sample
        assert sample is not None  # or the first round had raised
        stop = min(step + self.prefetch + 1, self.schedule.steps)
        coming = [self._expected[each].asks for each in range(step + 1, stop)]
        self._sizes[step] = agree_on_sizes(wire, [*map(self.features.count_bytes, coming)])
        return RankBatch(
            step,
            sample.seeds,
            sample.seed_rows,
            sample.blocks,
            features,
            self._gather_labels(wire, sample.seeds, round_number),
            positions,
            graph_types=GraphTypes.of(self.parts.described_graph),
            global_seeds=expected.global_seeds,
            ranks=self.parts.ranks,
        )

    def count_ahead(self, step: int) -> int:
        """How many batches after that of a step, which is there, may be made while it is trained on."""
        return count_ahead(self._sizes.pop(step), self.ahead_bytes, self.prefetch)

    def _find_seeds(self, step: int) -> torch.Tensor:
        seeds = self.schedule.batch(self._order, step)
        self._global_seeds[step] = len(seeds)
        ranks = share_out(self.parts.book.owners_of_nodes(seeds), self.parts.ranks)
        return seeds[ranks == self.parts.rank]

    def _expect(self, wire: Wire, step: int) -> Expected:
        try:
            sample = self._drawn.pop(step).result()
        except Exception as error:
            if not self._drawing.is_shared:
                return Expected(None, {}, 0, error)
            # Other ranks could not draw either, maybe at another step: none can be told in a round.
            if isinstance(error, ExchangeError) and wire.faults is not None:
                wire.faults.confess(error, wire.where)
            raise
        asks = self.features.expect(sample.input_nodes)
        return Expected(sample, asks, self._global_seeds.pop(step), None)

    def _gather_labels(self, wire: Wire, seeds: torch.Tensor, number: int) -> torch.Tensor | None:
        table = self.labels
        if table is None:
            return None
        start = self.parts.book.starts[table.node_type]
        ids = seeds.long() - start
        this = Round(f"rows of `{table.name}` for batches", number, table.parts)
        plan, problem = table.plan(ids)
        if problem is None and bool((ids < 0).any()):
            problem = SamplingError(
                f"labels are those of type `{table.node_type}`, but some seeds are not of it."
            )
        return table.fetch(wire, plan, problem, this).index_select(0, plan.inverse)
