"""The tables that a loader reads, each with what it keeps of other ranks' rows.

Nodes have global ids; a table has those of one type, and counts from that type's first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.distributed.tables.gather_plan import GatherPlan
from shorthaul.distributed.tables.kept_rows import KeptRows
from shorthaul.distributed.tables.row_exchange import Round
from shorthaul.errors import SamplingError
from shorthaul.graphs.loading.mini_batch import Rows


@dataclass(frozen=True, eq=False)
class TypeAsk:
    """What a batch asks of one table."""

    plan: GatherPlan
    positions: torch.Tensor  # of the type's nodes among all input nodes
    problem: Exception | None


class FeatureTables:
    """Tables by node type; one alone, of a graph with one type, gives a tensor and not a mapping."""

    def __init__(self, book: PartitionBook, features: Any, kept_bytes: int) -> None:
        self.book = book
        given = {features.node_type: features} if _is_table(features) else features or {}
        if not isinstance(given, Mapping) or not all(map(_is_table, given.values())):
            raise SamplingError(
                "features must be a DistributedTable or a mapping of node types to such, got "
                f"{type(features).__name__}.\n  `parts.features(node_type)` makes one."
            )
        for name, table in given.items():
            if table.node_type != name:
                raise SamplingError(f"features[{name!r}] is a table of `{table.node_type}`.")
        self.tables: dict[str, DistributedTable] = {
            name: given[name] for name in book.node_types if name in given
        }
        self.is_typed = len(book.node_types) > 1
        share_bytes = kept_bytes // max(1, len(self.tables))
        self.kept = {
            name: KeptRows(each.form.row_bytes, share_bytes) for name, each in self.tables.items()
        }

    def expect(self, nodes: torch.Tensor) -> dict[str, TypeAsk]:
        """What a batch of input nodes will ask; rows of other ranks are remembered as wanted."""
        asks = {}
        for name, table in self.tables.items():
            start = self.book.starts[name]
            is_own = (nodes >= start) & (nodes < start + self.book.count(name))
            positions = is_own.nonzero()[:, 0]
            plan, problem = table.plan(nodes[positions].long() - start)
            self.kept[name].expect(plan.far_ids)
            asks[name] = TypeAsk(plan, positions, problem)
        return asks

    def forget_expected(self) -> None:
        """What was expected will not come: an epoch ended early."""
        for each in self.kept.values():
            each.forget_expected()

    def count_bytes(self, asks: Mapping[str, TypeAsk]) -> int:
        """Of the rows that a batch will hold."""
        return sum(
            len(ask.positions)
            * self.tables[name].shape[1:].numel()
            * self.tables[name].dtype.itemsize
            for name, ask in asks.items()
        )

    def fetch(
        self,
        wire: Wire,
        asks: Mapping[str, TypeAsk],
        problem: BaseException | None,
        number: int,
    ) -> tuple[Rows | None, Mapping[str, torch.Tensor] | None]:
        """The rows of a batch's input nodes: one round for each table, in the order of types.

        A problem that this rank has is told in the first round.
        """
        rows: dict[str, torch.Tensor] = {}
        empty = torch.empty(0, dtype=torch.int64, device="cpu")
        for name, table in self.tables.items():
            this = Round(f"rows of `{table.name}` for batches", number, table.parts)
            if name in asks:
                ask = asks[name]
                found = table.fetch(wire, ask.plan, problem or ask.problem, this, self.kept[name])
                rows[name] = found.index_select(0, ask.plan.inverse)
            else:
                plan, _ = table.plan(empty)
                table.fetch(wire, plan, problem, this)
        if not self.tables:
            return None, None
        if not self.is_typed:
            (alone,) = rows.values()
            return alone, None
        return rows, {name: ask.positions for name, ask in asks.items()}


def _is_table(value: Any) -> bool:
    return isinstance(value, DistributedTable)
