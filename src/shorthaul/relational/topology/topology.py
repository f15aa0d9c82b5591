"""A graph as a compiled layer sees it: how many rows each space has, and where each way leads.

Edges are taken in the order of their targets, so that what aggregates over a target's edges reads
them one after the other. A *members* list is a way walked backwards: the fine rows of each coarse
row, as pointers and, where they are not consecutive, a list.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import choose_builder
from shorthaul.graphs.index.indexes import TargetIndex
from shorthaul.relational.ir.spaces import Space, follow
from shorthaul.relational.topology import relation_sides as sides


class Members(NamedTuple):
    """The fine rows of every coarse row."""

    pointers: torch.Tensor  # (coarse rows + 1,)
    rows: torch.Tensor | None  # (fine rows,); None: they are consecutive


class Tiles(NamedTuple):
    """Fine rows in pieces that belong to one coarse row each."""

    limits: torch.Tensor  # (tiles + 1,) positions among the members
    owners: torch.Tensor  # (tiles,) coarse rows
    first: torch.Tensor  # (coarse rows + 1,) the tiles of each


CHUNK_WORK = 4096  # rows and finer rows that one thread takes at a time


@dataclass(frozen=True, eq=False)
class Topology:
    """What a program may ask of a graph; everything is built at first use and kept."""

    graph: RelationalGraph  # with edges sorted by target
    edge_ids: torch.Tensor  # (E,) the user's edge of each of our edges
    num_targets: int
    _kept: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: RelationalGraph, num_targets: int | None = None) -> Topology:
        """The topology of `graph`, whose targets are its first `num_targets` nodes, or all."""
        targets = graph.num_nodes if num_targets is None else num_targets
        kept = _topologies.setdefault(graph, {})
        graph.by_target()  # raises when the graph was changed
        if targets not in kept:
            kept[targets] = cls._build(graph, targets)
        found: Topology = kept[targets]
        return found

    @classmethod
    def _build(cls, graph: RelationalGraph, num_targets: int) -> Topology:
        rows = graph.by_target()
        pointers = rows.pointers[:]
        degrees = (pointers[1:] - pointers[:-1]).to(torch.int64)
        targets = torch.repeat_interleave(
            torch.arange(graph.num_nodes, dtype=graph.index_dtype, device=pointers.device), degrees
        )
        ordered = RelationalGraph(
            graph.node_types,
            graph.nodes_per_type,
            graph.relations,
            rows.sources[:],
            targets,
            rows.relations[:],
        )
        numbers = torch.arange(ordered.num_edges, dtype=graph.index_dtype, device=pointers.device)
        ordered.indexes["target"] = TargetIndex(pointers, ordered.source, ordered.relation, numbers)
        made = cls(ordered, rows.edges[:], num_targets)
        made._kept[Space.EDGE, "target"] = Members(pointers[: num_targets + 1], None)
        return made

    @property
    def device(self) -> torch.device:
        """Where every list is: on the host, or where a mini-batch lies."""
        return self.edge_ids.device

    def rows(self, space: Space) -> int:
        """How many rows `space` has."""
        found: int | None = self._kept.get(space)
        if found is None:
            found = self._kept[space] = self._count_rows(space)
        return found

    def _count_rows(self, space: Space) -> int:
        if space is Space.SOURCE_PAIR:
            return self.graph.pairs("source").num_pairs
        if space is Space.TARGET_PAIR:
            return self.graph.pairs("target").num_pairs
        if space in sides.SPACES:
            return sides.count_rows(self, space)
        return {
            Space.ONE: 1,
            Space.RELATION: self.graph.num_relations,
            Space.NODE_TYPE: len(self.graph.node_types),
            Space.RELATION_TYPE: self.graph.num_relations * len(self.graph.node_types),
            Space.NODE: self.graph.num_nodes,
            Space.TARGET: self.num_targets,
            Space.EDGE: self.graph.num_edges,
        }[space]

    def tensor_shape(self, space: Space) -> tuple[int, ...]:
        """The dimensions that a tensor from outside has before those of one row."""
        if space is Space.RELATION_TYPE:
            return self.graph.num_relations, len(self.graph.node_types)
        return () if space is Space.ONE else (self.rows(space),)

    def edge_places(self) -> torch.Tensor:
        """Where each of the user's edges is among ours: `edge_ids` backwards."""
        if "edge_places" not in self._kept:
            ids = self.edge_ids.long()
            places = torch.empty_like(ids)
            places[ids] = torch.arange(ids.numel(), device=ids.device, dtype=torch.int64)
            self._kept["edge_places"] = places
        found: torch.Tensor = self._kept["edge_places"]
        return found

    def way(self, fine: Space, way: str, by: str | None = None) -> torch.Tensor:
        """The coarse row of every fine row: (fine rows,) in the graph's index dtype.

        In the order of the fine rows themselves, or of their members along another way: who goes
        through those reads one number after the other, and not one here and one there.
        """
        key = ("way", fine, way, by)
        if key not in self._kept:
            self._kept[key] = (
                self._find_way(fine, way) if by is None else self._sort_way(fine, way, by)
            )
        found: torch.Tensor = self._kept[key]
        return found

    def members(self, fine: Space, way: str) -> Members:
        """The fine rows of every coarse row."""
        if (fine, way) not in self._kept:
            self._kept[fine, way] = self._find_members(fine, way)
        found: Members = self._kept[fine, way]
        return found

    def chunks(self, space: Space, fine: Space | None, way: str | None) -> torch.Tensor:
        """Where to cut the rows of `space` into pieces of about equal work: (chunks + 1,)."""
        key = ("chunks", space, fine, way)
        if key not in self._kept:
            rows = self.rows(space)
            work = torch.arange(rows + 1, dtype=torch.int64, device=self.device)
            if fine is not None and way is not None:
                work = work + self.members(fine, way).pointers.to(torch.int64)
            cuts = torch.arange(
                0, int(work[-1]) + CHUNK_WORK, CHUNK_WORK, dtype=torch.int64, device=self.device
            )
            found = torch.unique(torch.searchsorted(work, cuts).clamp(max=rows))
            self._kept[key] = found.to(self.graph.index_dtype)
        chunks: torch.Tensor = self._kept[key]
        return chunks

    def count(self, of: Space, way: str, dtype: torch.dtype) -> torch.Tensor:
        """How many rows of `of` lead to each coarse row, as numbers."""
        key = ("count", of, way, dtype)
        if key not in self._kept:
            pointers = self.members(of, way).pointers
            self._kept[key] = (pointers[1:] - pointers[:-1]).to(dtype)
        found: torch.Tensor = self._kept[key]
        return found

    def tiles(self, fine: Space, way: str, rows_per_tile: int) -> Tiles:
        """The fine rows of each coarse row, cut into tiles."""
        key = ("tiles", fine, way, rows_per_tile)
        if key not in self._kept:
            pointers = self.members(fine, way).pointers.to(torch.int64)
            sizes = pointers[1:] - pointers[:-1]
            counts = (sizes + rows_per_tile - 1) // rows_per_tile
            first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            owner = torch.repeat_interleave(
                torch.arange(len(counts), dtype=torch.int64, device=self.device), counts
            )
            within = torch.arange(len(owner), dtype=torch.int64, device=self.device) - first[owner]
            begin = pointers[owner] + within * rows_per_tile
            limits = torch.cat([begin, pointers[-1:]])
            dtype = self.graph.index_dtype
            self._kept[key] = Tiles(limits.to(dtype), owner.to(dtype), first.to(dtype))
        found: Tiles = self._kept[key]
        return found

    def buckets(self, fine: Space, way: str, limits: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Coarse rows by how many fine rows they have: up to each limit, and more than the last."""
        key = ("buckets", fine, way, limits)
        if key not in self._kept:
            pointers = self.members(fine, way).pointers.to(torch.int64)
            bucket = torch.bucketize(
                pointers[1:] - pointers[:-1],
                torch.tensor(limits, dtype=torch.int64, device=self.device),
            )
            self._kept[key] = tuple(
                torch.nonzero(bucket == number).flatten().to(self.graph.index_dtype)
                for number in range(len(limits) + 1)
            )
        found: tuple[torch.Tensor, ...] = self._kept[key]
        return found

    def _find_way(self, fine: Space, way: str) -> torch.Tensor:
        dtype = self.graph.index_dtype
        if way == "all":
            return torch.zeros(self.rows(fine), dtype=dtype, device=self.device)
        if fine in sides.SPACES:
            return sides.find_way(self, fine, way)
        if fine is Space.EDGE:
            if way in ("source", "target", "relation"):
                edges: torch.Tensor = getattr(self.graph, way)
                return edges
            return self.graph.pairs(_side(way)).edge_to_pair[:]
        if fine is Space.RELATION:
            return self._find_types(way)
        if way == "type":
            limits = torch.tensor(
                self.graph.node_offsets[1:], dtype=torch.int64, device=self.device
            )
            nodes = torch.arange(self.rows(fine), dtype=torch.int64, device=self.device)
            return torch.bucketize(nodes, limits, right=True).to(dtype)
        pairs = self.graph.pairs(_side(fine.value))
        if way == "node":
            return pairs.nodes[:]
        counts = (pairs.pointers[1:] - pairs.pointers[:-1]).to(torch.int64)
        return torch.repeat_interleave(
            torch.arange(len(counts), dtype=dtype, device=self.device), counts
        )

    def _sort_way(self, fine: Space, way: str, by: str) -> torch.Tensor:
        found, order = self.way(fine, way), self.members(fine, by).rows
        return found if order is None else found[order]

    def _find_types(self, way: str) -> torch.Tensor:
        """The type at one end of every relation, alone or within its relation."""
        at = {name: number for number, name in enumerate(self.graph.node_types)}
        is_source = way.endswith("source_type")
        types = [
            at[each.source_type if is_source else each.target_type] for each in self.graph.relations
        ]
        if way.startswith("and_"):
            types = [number * len(at) + each for number, each in enumerate(types)]
        return torch.tensor(types, dtype=self.graph.index_dtype, device=self.device)

    def _find_members(self, fine: Space, way: str) -> Members:
        dtype = self.graph.index_dtype
        if way == "all":
            return Members(
                torch.tensor([0, self.rows(fine)], dtype=dtype, device=self.device), None
            )
        if way == "type":
            limits = torch.tensor(self.graph.node_offsets, dtype=dtype, device=self.device)
            return Members(limits.clamp(max=self.rows(fine)), None)
        if fine in sides.SPACES:
            return self._sort_members(fine, way)
        if fine is Space.EDGE:
            if way == "relation":
                by_relation = self.graph.by_relation()
                return Members(by_relation.pointers[:], by_relation.edges[:])
            if way == "source":
                by_source = self.graph.by_source()
                return Members(by_source.pointers[:], by_source.edges[:])
            pairs = self.graph.pairs(_side(way))
            return Members(pairs.pair_pointers[:], pairs.pair_edges[:])
        if fine is Space.RELATION:
            leads_to = self.way(fine, way)
            counts = torch.bincount(leads_to, minlength=self.rows(follow(fine, way)))
            pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            return Members(pointers.to(dtype), leads_to.argsort(stable=True).to(dtype))
        pairs = self.graph.pairs(_side(fine.value))
        if way == "relation":
            return Members(pairs.pointers[:], None)
        return self._sort_members(fine, way)

    def _sort_members(self, fine: Space, way: str) -> Members:
        """The fine rows of every coarse row, found by sorting the way."""
        leads_to = self.way(fine, way)
        rows = self.rows(follow(fine, way))
        found = choose_builder(leads_to).sort_relations(leads_to, leads_to, leads_to, rows)
        is_in_order = (fine, way) in sides.SORTED_WAYS
        return Members(found.pointers, None if is_in_order else found.edges)


_topologies: weakref.WeakKeyDictionary[RelationalGraph, dict[int, Topology]] = (
    weakref.WeakKeyDictionary()
)


def _side(name: str) -> Any:
    return "source" if name.startswith("source") else "target"
