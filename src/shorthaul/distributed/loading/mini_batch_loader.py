"""`sh.distributed.MiniBatchLoader`: the batches of one loader, shared out to ranks, rows fetched ahead."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeGuard

import torch

from shorthaul.distributed.loading.agreed_seeds import agree_on_seeds
from shorthaul.distributed.loading.drawing import make_sampler, start_drawing
from shorthaul.distributed.loading.epoch import Epoch
from shorthaul.distributed.loading.feature_tables import FeatureTables
from shorthaul.distributed.loading.rank_batch import RankBatch
from shorthaul.distributed.loading.schedule import Schedule
from shorthaul.distributed.parts import Parts
from shorthaul.distributed.ranks.agreement import read_together, require_equal
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.errors import CheckpointError, SamplingError
from shorthaul.graphs.sampling.fan_outs import FanOut
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.units import parse_bytes

_SAME = "Make the loader with the same arguments on every rank."
_SAME_LOADER = (
    "Make the loader with the arguments that it had, of the same parts, or begin without it."
)
_ANOTHER_LOOP = (
    "this loop over the loader has ended: another one began, or load_state_dict set its position.\n"
    "  Make a loader for each of two loops that take turns."
)


class MiniBatchLoader:
    """Iterates over this rank's share of each batch: sampled, features and labels gathered, all ahead.

    >>> import tempfile, torch, shorthaul as sh
    >>> graph = sh.RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sh.distributed.partition(graph, folder, 2, features=torch.eye(4), seeds=[0, 1, 2])
    ...     parts = sh.distributed.open(folder)
    ...     loader = sh.distributed.MiniBatchLoader(
    ...         parts, features=parts.features(), batch_size=2, fan_outs=[2, 2]
    ...     )
    ...     [(len(batch.seeds), batch.features.shape[1]) for batch in loader]
    [(2, 4), (1, 4)]

    A batch is that of all ranks together, and is the same on any number of ranks: it depends on `seed`,
    epoch and its number. Each rank gets equally many of its seeds, first those that it owns, and all
    ranks make equally many steps. It needs no collective of the model's.

    Args:
        parts: What `sh.distributed.open` gave.
        seeds: Global ids under the parts' numbers, or a node type with ids within it: the same on
            every rank, or on each rank its own. None (default) for what `partition` was given.
        fan_outs: Neighbors per hop, as in `sh.NeighborSampler` (default 15, 10, 5).
        batch_size: Seeds of a batch of all ranks together (default 1024).
        features: A table of `parts.features`, or a mapping of node types to such; None (default) for
            none.
        labels: A table of `parts.labels`, of the type of all seeds; None (default) for none.
        shuffle: Whether seeds come in a new order in each epoch (default False).
        seed: Of every random choice (default 0).
        drop_last: Whether a smaller last batch is left out (default False).
        prefetch: Batches made ahead (default 2); 0 makes each when it is asked for.
        prefetch_bytes: Memory for the rows of batches made ahead, as the rank with the largest needs it;
            one is always allowed (default `"1GiB"`).
        look_ahead: Batches drawn ahead to know which rows of other ranks are worth keeping (default
            8).
        kept_bytes: Memory for rows of other ranks that coming batches will ask for again (default
            `"256MiB"`).
        device: Where batches are wanted; None (default) leaves them on the CPU.
    """

    @outside_graphs
    def __init__(
        self,
        parts: Parts,
        seeds: Any = None,
        fan_outs: Sequence[FanOut] = (15, 10, 5),
        batch_size: int = 1024,
        *,
        features: DistributedTable | dict[str, DistributedTable] | None = None,
        labels: DistributedTable | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        prefetch: int = 2,
        prefetch_bytes: int | str = "1GiB",
        look_ahead: int = 8,
        kept_bytes: int | str = "256MiB",
        device: torch.device | str | None = None,
    ) -> None:
        self.parts = parts

        def read() -> None:
            self.batch_size = _read_count("batch_size", batch_size, 1)
            self.prefetch = _read_count("prefetch", prefetch, 0)
            self.look_ahead = _read_count("look_ahead", look_ahead, 0)
            self.prefetch_bytes = parse_bytes(prefetch_bytes)
            self.device = None if device is None else torch.device(device)
            self.sampler = make_sampler(parts, fan_outs, seed)
            self.features = FeatureTables(parts.book, features, parse_bytes(kept_bytes))
            if labels is not None and not isinstance(labels, DistributedTable):
                raise SamplingError(
                    "labels must be a DistributedTable, as parts.labels() makes it."
                )
            self.labels = labels

        read_together(parts.line, "the arguments of a loader", parts.described, read)
        self._line = parts.make_line("loader")
        self.seeds = self._line.run(
            "the seeds of a loader", lambda wire: agree_on_seeds(wire, parts, seeds)
        )
        self._schedule = Schedule(
            self.seeds, self.batch_size, self.sampler.seed, bool(shuffle), bool(drop_last)
        )
        self._drawing = start_drawing(parts, self.sampler)
        self._rounds = 0  # of all epochs: what keeps the ranks in step
        self.epoch = 0  # the next one, or the one that goes on
        self.step = 0  # the next batch of it
        self._live: Epoch | None = None  # of the loop that goes on
        self._is_inside = (
            False  # whether a loop over this loader brought it into the midst of an epoch
        )
        self._described = self._describe(bool(shuffle), bool(drop_last))
        self._require_agreement()

    def _describe(self, shuffle: bool, drop_last: bool) -> dict[str, int | str]:
        """What decides which batch is the next; a checkpoint that says otherwise is of another loader."""
        digest = hashlib.sha256(self.seeds.numpy().tobytes()).hexdigest()[:8]
        return {
            "seed": self.sampler.seed,
            "seeds": f"{len(self.seeds):,} ({digest})",
            "batch_size": self.batch_size,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "numbering": self.parts.manifest.numbering,
        }

    def _require_agreement(self) -> None:
        """Raise on every rank unless all have the same arguments."""
        tables = [each.name for each in self.features.tables.values()]
        facts = {
            **self._described,
            "fan_outs": self.sampler.fan_outs,
            "features": tables,
            "labels": None if self.labels is None else self.labels.name,
            "prefetch": self.prefetch,
            "prefetch_bytes": self.prefetch_bytes,
        }
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        self._line.run(
            "a loader's arguments",
            lambda wire: require_equal(wire, "the loader's arguments", told, _SAME),
        )

    def __len__(self) -> int:
        return self._schedule.steps

    def __iter__(self) -> Iterator[RankBatch]:
        """The rest of the epoch after `load_state_dict`, otherwise a whole one; ends other loops over this."""
        self._abandon()
        if self._is_inside:  # of an epoch that a loop was left in
            self.epoch, self.step, self._is_inside = self.epoch + 1, 0, False
        self._live = Epoch(
            self._schedule,
            self.epoch,
            self.step,
            self.parts,
            self.features,
            self.labels,
            self._drawing,
            self.look_ahead,
            self.prefetch,
            self.prefetch_bytes,
        )
        return self._iterate(self._live)

    def state_dict(self) -> dict[str, int | str]:
        """Where the loader is, to go on from there on any number of ranks: what comes next.

        In a loop that was left, by `break` or by an error, that is the rest of its epoch.
        """
        return {"epoch": self.epoch, "step": self.step, **self._described}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Go on where another loader, made with the same arguments, was; ends loops over this one.

        Args:
            state: What its `state_dict` gave.
        """
        for name, mine in self._described.items():
            if state.get(name) != mine:
                raise CheckpointError(f"a loader's {name}", state.get(name), mine, _SAME_LOADER)
        epoch, step = state.get("epoch"), state.get("step")
        if not (_is_count(epoch) and _is_count(step) and step < max(1, len(self))):
            raise CheckpointError(
                "a loader's position",
                f"step {step} of epoch {epoch}",
                f"{len(self):,} steps in each epoch",
                _SAME_LOADER,
            )
        self._abandon()
        self.epoch, self.step, self._is_inside = epoch, step, False

    def _abandon(self) -> None:
        """End the loop that goes on.

        What all ranks were asked for takes place, so that they stay in step; nobody keeps it.
        """
        if self._live is not None:
            self._live.is_abandoned = True
            self._live = None

    def _iterate(self, epoch: Epoch) -> Iterator[RankBatch]:
        number, steps = epoch.number, len(self)
        batches: deque[Future[RankBatch]] = deque()
        asked = epoch.first_step

        def ask_until(stop: int) -> None:
            nonlocal asked
            while asked < min(stop, steps):
                epoch.draw_for(asked)
                job = functools.partial(epoch.complete, step=asked, round_number=self._rounds)
                where = f"batch {asked:,} of epoch {number:,}"
                batches.append(self._line.submit(where, job))
                self._rounds += 1
                asked += 1

        try:
            for step in range(epoch.first_step, steps):
                if epoch.is_abandoned:
                    raise SamplingError(_ANOTHER_LOOP)
                ask_until(step + 1)
                batch = batches.popleft().result()
                ask_until(step + 1 + epoch.count_ahead(step))
                is_last = step + 1 == steps
                self.epoch, self.step = (number + 1, 0) if is_last else (number, step + 1)
                self._is_inside = not is_last
                yield batch if self.device is None else _moved(batch, self.device)
                del batch
        finally:
            if self._live is epoch:
                self._live = None

    def close(self) -> None:
        """End the loader's threads and process group, and a loop that goes on.

        It also happens when nothing refers to the loader any more.
        """
        self._abandon()
        self._line.close()
        self._drawing.close()

    def __enter__(self) -> MiniBatchLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"MiniBatchLoader({self.parts!r}, {len(self.seeds):,} seeds in {len(self):,} batches)"
        )


def _moved(batch: RankBatch, device: torch.device) -> RankBatch:
    moved = batch.to(device)
    assert isinstance(moved, RankBatch)
    return moved


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SamplingError(f"{name} must be a whole number from {least} on, got {value!r}.")
    return value
