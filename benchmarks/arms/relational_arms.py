"""Our relational layers as arms of a process of their own, to see what memory a step takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

# isort: split
if str(Path(__file__).parents[2]) not in sys.path:  # served by `arm_server.py`, from its own folder
    sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.arms.relational_cells import list_cells, make_run
from benchmarks.arms.relational_graphs import load_graph
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RGATConv, RGCNConv
from shorthaul.relational.topology.topology import Topology


def draw_graph(edges: int, nodes: int, relations: int) -> RelationalGraph:
    """Edges between nodes drawn at random, with relations drawn at random."""
    generator = torch.Generator().manual_seed(0)
    source, target, relation = (
        torch.randint(0, limit, (edges,), generator=generator, dtype=torch.int32)
        for limit in (nodes, nodes, relations)
    )
    return RelationalGraph.from_edges(
        source, target, relation, num_nodes=nodes, num_relations=relations
    )


def make_cell(graph: str, layer: str, threads: int) -> Callable[[], object]:
    """A training step of a layer on one of the graphs, whose edges are sorted before."""
    torch.set_num_threads(threads)
    loaded = load_graph(graph)
    cell = next(each for each in list_cells(loaded) if each.layer == layer)
    _build_indexes(loaded)
    x = torch.randn(loaded.num_nodes, 64)
    return make_run(cell, x, training=True)


def make_drawn(
    layer: str, edges: int, nodes: int, relations: int, width: int, threads: int
) -> Callable[[], object]:
    """A training step of a layer on a graph drawn at random."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    graph = draw_graph(edges, nodes, relations)
    _build_indexes(graph)
    module = {"RGCN": RGCNConv, "RGAT": RGATConv}[layer](width, width, relations)
    x = torch.randn(nodes, width, requires_grad=True)
    arrived = torch.ones(nodes, width)

    def step() -> None:
        module.zero_grad()
        x.grad = None
        module(x, graph).backward(arrived)

    return step


def _build_indexes(graph: RelationalGraph) -> None:
    """What a training step asks of a graph: it is a property of the graph, and kept with it."""
    ordered = Topology.of(graph).graph
    ordered.by_source()
    ordered.pairs("source")
    ordered.pairs("target")


ARMS = {"cell": make_cell, "drawn": make_drawn}
