"""One epoch of one rank: samples drawn in one thread, rows fetched on the loader's line, in order."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from shorthaul.distributed.loading.bytes_ahead import BytesAhead
from shorthaul.distributed.loading.feature_tables import FeatureTables, TypeAsk
from shorthaul.distributed.loading.rank_batch import RankBatch
from shorthaul.distributed.loading.schedule import Schedule, share_out
from shorthaul.distributed.parts import Parts
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.ranks.worker import Worker
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.distributed.tables.row_exchange import Round, announce
from shorthaul.errors import SamplingError
from shorthaul.graphs import NeighborSample, NeighborSampler


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
        sampler: NeighborSampler,
        features: FeatureTables,
        labels: DistributedTable | None,
        drawing: Worker,
        look_ahead: int,
        ahead_bytes: int,
    ) -> None:
        self.schedule, self.number, self.parts = schedule, number, parts
        self.sampler, self.features, self.labels = sampler, features, labels
        self.look_ahead, self.first_step = look_ahead, first_step
        self._drawing = drawing
        self._order = schedule.order(number)
        self._drawn: dict[int, Future[tuple[NeighborSample, int]]] = {}
        self._next_draw = self._next_expected = first_step
        self._expected: dict[int, Expected] = {}
        self._ahead = BytesAhead(ahead_bytes)
        self._sizes: dict[int, int] = {}

    def draw_until(self, stop: int) -> None:
        """Have samples drawn up to a step, in the thread that draws."""
        while self._next_draw < min(stop, self.schedule.steps):
            job = functools.partial(self._draw, self._next_draw)
            self._drawn[self._next_draw] = self._drawing.submit(job)
            self._next_draw += 1

    def complete(self, wire: Wire, step: int, round_number: int) -> RankBatch:
        """The batch of a step, its rows fetched from all ranks."""
        if step == self.first_step:
            self.features.forget_expected()  # of an epoch that was left early
        while self._next_expected < min(step + self.look_ahead + 1, self.schedule.steps):
            self._expected[self._next_expected] = self._expect(self._next_expected)
            self._next_expected += 1
        expected = self._expected.pop(step)
        size_bytes = self.features.count_bytes(expected.asks)
        self._ahead.take(size_bytes)
        self._sizes[step] = size_bytes
        if not self.features.tables:
            this = Round("batches", round_number, self.parts.described)
            announce(wire, this, [], expected.problem)
        features, positions = self.features.fetch(
            wire, expected.asks, expected.problem, round_number
        )
        sample = expected.sample
        assert sample is not None  # or the first round had raised
        return RankBatch(
            step,
            sample.seeds,
            sample.seed_rows,
            sample.blocks,
            features,
            self._gather_labels(wire, sample.seeds, round_number),
            positions,
            global_seeds=expected.global_seeds,
            ranks=self.parts.ranks,
        )

    def hand_out(self, step: int) -> None:
        """The loop takes the batch of a step."""
        self._ahead.give_back(self._sizes.pop(step))

    def abandon(self) -> None:
        """Nobody will take what is still to come."""
        self._ahead.open()

    def _draw(self, step: int) -> tuple[NeighborSample, int]:
        seeds = self.schedule.batch(self._order, step)
        ranks = share_out(self.parts.book.owners_of_nodes(seeds), self.parts.ranks)
        own = seeds[ranks == self.parts.rank]
        number = (self.number << 32) + step
        return self.sampler.sample(own, number=number), len(seeds)

    def _expect(self, step: int) -> Expected:
        try:
            sample, global_seeds = self._drawn.pop(step).result()
        except Exception as error:
            return Expected(None, {}, 0, error)
        return Expected(sample, self.features.expect(sample.input_nodes), global_seeds, None)

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
