"""`DistributedTable`: rows that many ranks own, asked for by their ids from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.gather_plan import (
    GatherPlan,
    Placement,
    count_by_rank,
    plan_gather,
)
from shorthaul.distributed.tables.kept_rows import KeptRows
from shorthaul.distributed.tables.near_rows import NearRows
from shorthaul.distributed.tables.row_exchange import Round, announce, exchange_rows
from shorthaul.distributed.tables.sum_exchange import exchange_sums
from shorthaul.distributed.tables.sum_plan import narrow_pointers, plan_sums, require_sums
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.tables.wire_format import WireFormat
from shorthaul.errors import RowIndexError, ShorthaulError
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.tensors.kernels.host_kernels import plain_ids, require_ids
from shorthaul.tensors.tables.table import HostTable, RowTable

_MOST_INT32 = 2**31 - 1
NoteServed = Callable[[list[int], list[int], torch.Tensor], None]


class DistributedTable:
    """Rows of one node type over all ranks. Made by `Parts.features` and `Parts.table`.

    >>> import tempfile, torch, shorthaul as sh
    >>> graph = sh.RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sh.distributed.partition(graph, folder, 2, features=torch.eye(4), method="range")
    ...     features = sh.distributed.open(folder).features()
    ...     features[torch.tensor([3, 0])]
    tensor([[0., 0., 0., 1.],
            [1., 0., 0., 0.]])

    Every rank asks at the same time, each for what it needs, or for nothing: a gather is a collective.
    An id that is out of range on one rank is an error on all of them.
    """

    def __init__(
        self,
        node_type: str,
        name: str,
        shape: tuple[int, ...],
        form: WireFormat,
        placement: Placement,
        near: NearRows,
        hot: RowTable | None,
        line: Line,
        own_parts: range,
        parts: str,
    ) -> None:
        self.node_type = node_type
        self.name = f"{node_type}.{name}"  # as errors say it
        self.shape = torch.Size(shape)
        self.form, self.placement, self.line = form, placement, line
        self.parts = parts  # this rank's, in words
        self.traffic = Traffic()
        self._near, self._hot, self._own_parts = near, hot, own_parts
        self._rounds = 0

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that are handed out."""
        return self.form.dtype

    @property
    def rows(self) -> int:
        """How many there are, on all ranks together."""
        return self.shape[0]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.gather(ids)

    @outside_graphs
    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows that `ids` name, in that order; negative ids count from the end.

        Args:
            ids: Those of nodes, within their type, under the parts' numbers: int32 or int64, on the
                CPU. They differ from rank to rank.
        """
        number, self._rounds = self._rounds, self._rounds + 1
        this = Round(f"rows of `{self.name}`", number, self.parts)
        where = f"rows of `{self.name}`, gather {number:,}"
        return self.line.run(where, lambda wire: self.gather_by(wire, ids, this))

    def gather_by(self, wire: Wire, ids: torch.Tensor, this: Round) -> torch.Tensor:
        """The rows of `ids` in one round on a line of somebody else's, on whose thread this runs.

        Args:
            wire: The line's.
            ids: As for `gather`.
            this: What the round is, the same on all ranks.
        """
        plan, problem = self.plan(ids)
        rows = self.fetch(wire, plan, problem, this)
        return rows.index_select(0, plan.inverse)

    @outside_graphs
    def gather_reduce(
        self,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: str = "sum",
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One row for each segment `ids[pointers[s]:pointers[s + 1]]`: the sum or mean of its rows.

        An owner of many of a segment's rows sends their sum, where that is fewer bytes than its rows.
        A collective, as `gather` is; all ranks give weights or none does.

        Args:
            pointers: Where segments begin, and at last the number of ids.
            ids: As for `gather`.
            op: `"sum"` (default) or `"mean"`, the same on all ranks.
            weights: A number for each id, by which its row is multiplied; None (default) for none.
        """
        number, self._rounds = self._rounds, self._rounds + 1
        words = f"{op}s of rows of `{self.name}`{'' if weights is None else ', weighted'}"
        this = Round(words, number, self.parts)

        def work(wire: Wire) -> torch.Tensor:
            return self._reduce(wire, this, pointers, ids, op, weights)

        return self.line.run(f"{words}, gather {number:,}", work)

    def _reduce(
        self,
        wire: Wire,
        this: Round,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: str,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        given, ends, factors = none, none.new_zeros(1), None
        problem: ShorthaulError | None = None
        try:
            require_ids(ids)
            require_sums(pointers, ids, op, weights, self.dtype)
            given, ends = plain_ids(ids, self.rows), pointers.long()
            factors = None if weights is None else weights.detach().to(self.dtype)
        except ShorthaulError as error:
            problem = error
        narrow = self._id_dtype
        plan = plan_sums(
            ends,
            given,
            self.placement,
            row_bytes=self.form.row_bytes + narrow.itemsize,
            sum_bytes=self.shape[1:].numel() * self.dtype.itemsize,
            pair_bytes=narrow.itemsize + (0 if factors is None else self.dtype.itemsize),
        )
        is_row = ~plan.is_partial
        asked = plan_gather(given[is_row], self.placement)
        # Rows first: theirs is the round in which problems are told.
        rows = self.fetch(wire, asked, problem, this)
        own = None if factors is None else factors[is_row]
        narrowed = narrow_pointers(ends, is_row)
        sums = HostTable(rows).gather_reduce(narrowed, asked.inverse, "sum", own)
        if wire.world.ranks > 1:
            theirs = None if factors is None else factors[plan.order]
            pairs = given[plan.order].to(narrow)
            found = exchange_sums(wire, plan, pairs, theirs, self._serve, self.traffic)
            sums.index_add_(0, plan.segments, found)
        if op == "mean":
            sizes = ends.diff().clamp(min=1).to(sums.dtype)
            sums /= sizes.view(-1, *[1] * (sums.dim() - 1))
        return sums

    @property
    def _id_dtype(self) -> torch.dtype:
        return torch.int32 if self.rows <= _MOST_INT32 else torch.int64

    def plan(self, ids: Any) -> tuple[GatherPlan, ShorthaulError | None]:
        """Where the rows of `ids` come from, and what is wrong with them: then nothing is asked for."""
        empty = torch.empty(0, dtype=torch.int64, device="cpu")
        try:
            require_ids(ids)
            return plan_gather(plain_ids(ids, self.rows), self.placement), None
        except ShorthaulError as error:
            return plan_gather(empty, self.placement), error

    def fetch(
        self,
        wire: Wire,
        plan: GatherPlan,
        problem: BaseException | None,
        this: Round,
        kept: KeptRows | None = None,
        note_served: NoteServed | None = None,
    ) -> torch.Tensor:
        """A row for each of the plan's distinct ids, in one round.

        Args:
            wire: Of the line on whose thread this runs.
            plan: What is asked for.
            problem: What this rank must tell the others first; None for nothing.
            this: What the round is, the same on all ranks.
            kept: Rows of earlier rounds, which are not asked for again; None (default) for none.
            note_served: Told how many ids went to each rank, how many came from each, and those that
                came; None (default) where nobody wants to know.
        """
        traffic = self.traffic
        ids, found = plan.far_ids, None
        if kept is not None:
            found = kept.look_up(plan.far_ids)
            ids = plan.far_ids[found[1]]
            traffic.add(kept_rows=len(plan.far_ids) - len(ids))
        counts = count_by_rank(ids, self.placement)
        wanted = announce(wire, this, counts, problem)
        rows = torch.empty((len(plan.ids), *self.shape[1:]), dtype=self.dtype, device="cpu")
        traffic.add(
            asked_rows=len(plan.inverse),
            unique_rows=len(plan.ids),
            near_rows=self._near.read(plan, rows),
        )
        if len(plan.hot_at):
            assert self._hot is not None
            rows[plan.hot_at] = self._hot.gather(plan.hot_rows)
            traffic.add(hot_rows=len(plan.hot_at))
        if wire.world.ranks > 1:

            def serve(served: torch.Tensor) -> torch.Tensor:
                if note_served is not None:
                    note_served(counts, wanted, served)
                return self._serve(served)

            data = exchange_rows(
                wire, ids.to(self._id_dtype), counts, wanted, self.form, serve, traffic
            )
            if kept is not None and found is not None:
                kept.keep(ids, data)
                whole, missing = found
                whole[missing] = data
                data = whole
            rows[plan.far_at] = self.form.decode(data)
        return rows

    def _serve(self, ids: torch.Tensor) -> torch.Tensor:
        """This rank's rows for others."""
        first, stop = self._own_parts.start, self._own_parts.stop
        offsets = self.placement.part_offsets
        wrong = ((ids < offsets[first]) | (ids >= offsets[stop])).nonzero()
        if len(wrong):
            raise RowIndexError(int(ids[wrong[0, 0]]), int(wrong[0, 0]), offsets[stop])
        like = torch.empty((0, *self.shape[1:]), dtype=self.dtype, device="cpu")
        return self._near.serve(ids, first, stop, like)

    def close(self) -> None:
        """End the table's thread and process group; nothing can be gathered any more."""
        self.line.close()

    def __enter__(self) -> DistributedTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self) -> Traffic:
        """Rows by where they came from, and bytes on the wire, of this rank."""
        return self.traffic

    def __repr__(self) -> str:
        return f"DistributedTable({self.name}, {tuple(self.shape)}, {self.dtype}, {self.parts})"
