"""Graphs with all that is awkward, layers that run on them, and what one process makes of both."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import shorthaul as sh
from shorthaul import relational
from shorthaul.graphs import RelationalGraph

WIDTH = 8
RELATIONS = 4
TYPED = {"author": 12, "paper": 30, "venue": 2}  # of four parts, two or more have no venue

WIDTHS = {"author": 3, "paper": 5, "venue": 4}


def related_graph(nodes: int = 40, edges: int = 500, seed: int = 0) -> RelationalGraph:
    """Few targets for many sources, edges that are there three times, and no edge of relation 2."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(nodes, (edges,), generator=generator)
    target = torch.randint(nodes, (edges,), generator=generator)
    relation = torch.tensor([0, 1, 3])[torch.randint(3, (edges,), generator=generator)]
    is_few = relation == 3  # few targets of many sources of their own: averages are fewer
    source = source // 2 * 2 + is_few
    target[is_few] = target[is_few] % 3 * 13
    again = torch.arange(0, 30).repeat(2)
    columns = [torch.cat([each, each[again]]) for each in (source, target, relation)]
    return RelationalGraph.from_edges(*columns, num_nodes=nodes, num_relations=RELATIONS)


def venue_graph(seed: int = 0) -> RelationalGraph:
    """Papers of two venues, so that most parts have no node of that type; nobody `edits`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(one: str, other: str, count: int) -> torch.Tensor:
        ends = [torch.randint(TYPED[e], (count,), generator=generator) for e in (one, other)]
        return torch.stack(ends)

    cites = draw("paper", "paper", 80)
    return RelationalGraph.from_typed_edges(
        {
            ("author", "writes", "paper"): draw("author", "paper", 60),
            ("paper", "cites", "paper"): torch.cat([cites, cites[:, :9]], 1),
            ("author", "edits", "venue"): torch.empty(2, 0, dtype=torch.int64),
            ("paper", "at", "venue"): draw("paper", "venue", 30),
            ("venue", "prints", "author"): draw("venue", "author", 20),
        },
        TYPED,
    )


def cut(graph: RelationalGraph, folder: Path, parts: int = 4, **options: Any) -> None:
    sh.distributed.partition(graph, folder, parts, **options)


def joined_layers() -> dict[str, nn.Module]:
    """Layers of one tensor."""
    torch.manual_seed(0)
    made = {
        "RGCN": relational.RGCNConv(WIDTH, 5, RELATIONS),
        "RGCN, sums, bases": relational.RGCNConv(WIDTH, 5, RELATIONS, num_bases=2, aggr="add"),
        "RGCN, maxima": relational.RGCNConv(WIDTH, 5, RELATIONS, aggr="max"),
        "RGAT": relational.RGATConv(WIDTH, 5, RELATIONS, heads=2),
        "SAGE": relational.SAGEConv(WIDTH, 5),
        "SAGE, projected": relational.SAGEConv(WIDTH, 5, project=True),
        "GraphConv": relational.GraphConv(WIDTH, 5),
        "GAT": relational.GATConv(WIDTH, 5),
        "DGL's": relational.RelGraphConv(WIDTH, 5, RELATIONS),
    }
    return {name: each.double() for name, each in made.items()}


def typed_layers(metadata: Any) -> dict[str, nn.Module]:
    """Layers of a tensor for each type."""
    torch.manual_seed(1)

    def hetero(make: Any, aggr: str) -> nn.Module:
        return relational.HeteroConv({each: make() for each in metadata[1]}, aggr=aggr)

    made = {
        "HGT": relational.HGTConv(WIDTH, WIDTH, metadata, heads=2),
        "HGT, widths": relational.HGTConv(WIDTHS, 6, metadata, heads=2),
        "SAGE": hetero(lambda: relational.SAGEConv((WIDTH, WIDTH), 5), "sum"),
        "GAT": hetero(lambda: relational.GATConv((WIDTH, WIDTH), 5, add_self_loops=False), "mean"),
        "maxima of sums": hetero(lambda: relational.GraphConv((WIDTH, WIDTH), 5), "max"),
    }
    return {name: each.double() for name, each in made.items()}


def metadata_of(graph: RelationalGraph) -> tuple[list[str], list[tuple[str, str, str]]]:
    return list(graph.node_types), [tuple(each) for each in graph.relations]


def drawn_rows(count: int, seed: int, width: int = WIDTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator)


def typed_rows(name: str, nodes: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a layer of types is given: rows of these nodes; of other widths those of papers are fixed."""
    return {
        kind: drawn_rows(TYPED[kind], 3, WIDTHS[kind] if "widths" in name else WIDTH)[at]
        .clone()
        .requires_grad_(not ("widths" in name and kind == "paper"))
        for kind, at in nodes.items()
    }


def loss_of(out: torch.Tensor, rows: Any, seed: int) -> torch.Tensor:
    """One number that every output matters for, each otherwise; `rows` are those that are here."""
    weights = drawn_rows(100, seed, out.shape[1])[rows]
    return (out.tanh() * weights).sum()


def gradients_of(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: torch.zeros_like(each) if each.grad is None else each.grad.clone()
        for name, each in layer.named_parameters()
    }


def typed_edges(graph: RelationalGraph) -> Mapping[Any, torch.Tensor]:
    """`edge_index_dict` of the whole graph."""
    first = dict(zip(graph.node_types, graph.node_offsets, strict=False))
    found = {}
    for number, relation in enumerate(graph.relations):
        at = graph.relation[:] == number
        source = graph.source[:][at].long() - first[relation.source_type]
        target = graph.target[:][at].long() - first[relation.target_type]
        found[tuple(relation)] = torch.stack([source, target])
    return found


def count_fewest(edges: Iterable[tuple[Hashable, Hashable]]) -> int:
    """The fewest ends that cover all edges: as many as a largest matching has (König)."""
    neighbors: dict[Hashable, set[Hashable]] = {}
    for one, other in edges:
        neighbors.setdefault(one, set()).add(other)
    matched: dict[Hashable, Hashable] = {}

    def find_partner(one: Hashable, seen: set[Hashable]) -> bool:
        for other in neighbors[one] - seen:
            seen.add(other)
            if other not in matched or find_partner(matched[other], seen):
                matched[other] = one
                return True
        return False

    return sum(find_partner(one, set()) for one in neighbors)
