"""Samples of a topology that is split by part: each hop asks the owners of its nodes, who draw for them.

::

    32 bytes to each rank      what is exchanged, how many nodes will follow
    nodes to their owners      4 bytes each where ids have 32 bits
    degrees back               4 bytes for each node: how many neighbors were drawn
    neighbors back             source and edge id, and the relation where there are several

Random numbers belong to a batch, a hop and a node, so the owner draws what the rank that asks would have drawn,
and a node that several ranks ask for in the same hop is drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.row_exchange import HEADER_BYTES, Round, announce
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.topology.held_rows import HeldRows
from shorthaul.graphs import Block, NeighborSample, TargetIndex
from shorthaul.graphs.sampling.kernels import require_drawn
from shorthaul.graphs.sampling.one_hop import OneHop


class Neighbors(NamedTuple):
    """What was drawn for some nodes, node after node."""

    degrees: torch.Tensor  # (nodes,) int32
    columns: (
        torch.Tensor
    )  # (edges, 2 or 3): source, edge id, and the relation where there are several


class SplitSampler:
    """Draws with all ranks at the same time, each around its own seeds, or around none."""

    def __init__(
        self,
        held: HeldRows,
        book: PartitionBook,
        drawing: OneHop,
        relations: int,
        parts: str,
    ) -> None:
        self.held, self.book, self.drawing, self.parts = held, book, drawing, parts
        self.relations = relations
        self.fan_outs, self.seed = drawing.fan_outs, drawing.seed
        self.traffic = Traffic()

    def sample(
        self, wire: Wire, seeds: torch.Tensor, number: int, round_number: int
    ) -> NeighborSample:
        """The blocks around `seeds`, global ids that are all different.

        Args:
            wire: Of the line on whose thread this runs.
            seeds: This rank's.
            number: Which sample it is, the same on all ranks: random numbers depend on it.
            round_number: How many were exchanged on this line before.
        """
        nodes = seeds.to(self.drawing.dtype)
        blocks = []
        for hop in range(len(self.fan_outs)):
            this = Round(f"neighbors of hop {hop}", round_number, self.parts)
            block = self._draw(wire, nodes, hop, number, this)
            blocks.append(block)
            nodes = block.source_nodes
        rows = torch.arange(len(seeds), dtype=self.drawing.dtype, device="cpu")
        return NeighborSample(seeds.to(rows.dtype), rows, blocks[::-1], number)

    def _draw(self, wire: Wire, targets: torch.Tensor, hop: int, number: int, this: Round) -> Block:
        """The neighbors of `targets`, which are all different, in their order."""
        ranks = wire.world.ranks
        is_far = ~self.held.holds(targets)
        far_at = is_far.nonzero()[:, 0]
        owners = self.book.owners_of_nodes(targets[far_at])
        far_at = far_at[torch.argsort(owners, stable=True)]
        counts = torch.bincount(owners, minlength=ranks).tolist()
        wanted = announce(wire, this, counts, None)
        asked = wire.exchange(targets[far_at], counts, wanted) if ranks > 1 else targets[:0]
        near_at = (~is_far).nonzero()[:, 0]
        found = self._draw_here(torch.cat([targets[near_at], asked]), hop, number)
        own, theirs = _cut(found, len(near_at))
        parts = [own]
        if ranks > 1:
            parts.append(self._return(wire, theirs, counts, wanted))
            ids_bytes = targets.element_size()
            header_bytes = HEADER_BYTES * (ranks - 1)
            told = sum(each.nbytes for each in theirs) + ids_bytes * len(far_at)
            heard = sum(each.nbytes for each in parts[1]) + ids_bytes * len(asked)
            self.traffic.note_round(header_bytes + heard, header_bytes + told)
        self.traffic.add(
            exchanges=1,
            asked_rows=len(targets),
            unique_rows=len(targets),
            near_rows=len(near_at),
            far_rows=len(far_at),
            served_rows=len(asked),
        )
        return _make_block(targets, _in_order(parts, torch.cat([near_at, far_at])))

    def _draw_here(self, nodes: torch.Tensor, hop: int, number: int) -> Neighbors:
        """Neighbors of nodes whose rows are here; what several ranks ask for is drawn once."""
        distinct, places = torch.unique(nodes, return_inverse=True)
        by_relation = len(self.fan_outs[hop]) > 1
        rows = self.held.find(distinct, by_relation=by_relation)
        pointers, positions = self.drawing.draw(distinct, rows, hop=hop, number=number)
        bounds = pointers[self.held.split(distinct)].tolist()
        columns = self.held.read(positions, bounds)
        width = 3 if self.relations > 1 else 2
        return _select(
            Neighbors(pointers.diff().int(), torch.stack(columns[:width], dim=1)), places
        )

    def _return(
        self, wire: Wire, theirs: Neighbors, counts: list[int], wanted: list[int]
    ) -> Neighbors:
        """Send others what was drawn for them, and get what was drawn here."""
        degrees = wire.exchange(theirs.degrees, wanted, counts)
        sent = [int(each.sum()) for each in torch.split(theirs.degrees, wanted)]
        due = [int(each.sum()) for each in torch.split(degrees, counts)]
        return Neighbors(degrees, wire.exchange(theirs.columns, sent, due))


def _cut(found: Neighbors, count: int) -> tuple[Neighbors, Neighbors]:
    """Those of the first `count` nodes, and of the others."""
    edges = int(found.degrees[:count].sum())
    return (
        Neighbors(found.degrees[:count], found.columns[:edges]),
        Neighbors(found.degrees[count:], found.columns[edges:]),
    )


def _select(found: Neighbors, places: torch.Tensor) -> Neighbors:
    """The neighbors of the nodes at `places`, in that order.

    >>> found = Neighbors(torch.tensor([2, 1]), torch.tensor([[5, 0], [6, 1], [7, 2]]))
    >>> _select(found, torch.tensor([1, 0, 1])).columns[:, 0].tolist()
    [7, 5, 6, 7]
    """
    degrees = found.degrees.long()
    begins = torch.cumsum(degrees, 0) - degrees
    chosen = degrees[places]
    firsts = torch.cumsum(chosen, 0) - chosen
    within = torch.arange(int(chosen.sum()), dtype=torch.int64, device="cpu")
    rows = within + torch.repeat_interleave(begins[places] - firsts, chosen)
    return Neighbors(found.degrees[places], found.columns[rows])


def _in_order(parts: Sequence[Neighbors], at: torch.Tensor) -> Neighbors:
    """Parts one after the other, whose nodes belong at `at`, in the order of these places."""
    joined = Neighbors(
        torch.cat([each.degrees for each in parts]), torch.cat([each.columns for each in parts])
    )
    return _select(joined, torch.argsort(at))


def _make_block(targets: torch.Tensor, found: Neighbors) -> Block:
    """The block of one hop; its index is its own, as no rank has that of the graph.

    Nodes are numbered in the order in which they are met, targets first.
    """
    dtype, count = targets.dtype, len(found.columns)
    require_drawn(count if count <= torch.iinfo(dtype).max else -1, dtype)
    sources, edges = (found.columns[:, each].contiguous() for each in range(2))
    has_relations = found.columns.shape[1] > 2
    relations = found.columns[:, 2].contiguous() if has_relations else torch.zeros_like(edges)
    met = torch.cat([targets, sources])
    distinct, numbers = torch.unique(met, return_inverse=True)
    places = torch.arange(len(met), dtype=torch.int64, device="cpu")
    first = torch.full((len(distinct),), len(met), dtype=torch.int64, device="cpu")
    first.scatter_reduce_(0, numbers, places, "amin")
    order = torch.argsort(first)
    rows = torch.empty_like(order)
    rows[order] = torch.arange(len(order), dtype=torch.int64, device="cpu")
    pointers = torch.zeros(len(targets) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(found.degrees, 0, out=pointers[1:])
    positions = torch.arange(count, dtype=dtype, device="cpu")
    index = TargetIndex(pointers.to(dtype), sources, relations, edges)
    local = rows[numbers[len(targets) :]].to(dtype)
    return Block(distinct[order], len(targets), index.pointers, local, positions, index)
