"""What does a hub cost a relational layer: one node with a tenth of all edges?

Graphs drawn at random with two million edges, ten for each node; in one, a tenth of the edges lead to one
node (a hub of the forward pass), in another as many come from one node (a hub of the backward pass).
The layers' own kernels on all cores: a thread that had a hub to itself would keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.arms.relational_arms import draw_graph
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, not_compared
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import GATv2Conv, RGATConv, RGCNConv, SAGEConv

WIDTH, RELATIONS, EDGES_PER_NODE = 64, 10, 10
NO_HUB, TARGET, SOURCE = "no hub", "a hub of targets", "a hub of sources"


def draw_graphs(edges: int, relations: int) -> dict[str, RelationalGraph]:
    """The same edges without a hub, with one to which a tenth lead, and with one from which they come."""
    nodes = edges // EDGES_PER_NODE
    plain = draw_graph(edges, nodes, relations)
    is_hubs = torch.rand(edges, generator=torch.Generator().manual_seed(1)) < 0.1

    def replace(end: str) -> RelationalGraph:
        ends = {"source": plain.source[:], "target": plain.target[:]}
        ends[end] = ends[end].masked_fill(is_hubs, nodes // 2)
        return RelationalGraph.from_edges(
            ends["source"],
            ends["target"],
            plain.relation[:],
            num_nodes=nodes,
            num_relations=relations,
        )

    return {NO_HUB: plain, TARGET: replace("target"), SOURCE: replace("source")}


def make_layers() -> dict[str, torch.nn.Module]:
    """The layers that the question is asked of."""
    torch.manual_seed(0)
    return {
        "RGCN": RGCNConv(WIDTH, WIDTH, RELATIONS),
        "RGAT 4 heads": RGATConv(WIDTH, WIDTH // 4, RELATIONS, heads=4),
        "GATv2 4 heads": GATv2Conv(WIDTH, WIDTH // 4, heads=4, add_self_loops=False),
        "SAGE mean": SAGEConv(WIDTH, WIDTH),
        "SAGE max": SAGEConv(WIDTH, WIDTH, aggr="max"),
    }


def make_call(module: torch.nn.Module, graph: RelationalGraph, training: bool) -> Callable[[], Any]:
    """A call of the layer, with all gradients if `training`; the graph's indexes are there."""
    x = torch.randn(graph.num_nodes, WIDTH, requires_grad=training)
    arrived = torch.ones(graph.num_nodes, WIDTH)

    def infer() -> Any:
        with torch.no_grad():
            return module(x, graph)

    def train() -> None:
        module.zero_grad()
        x.grad = None
        module(x, graph).backward(arrived)

    call = train if training else infer
    call()
    return call


def measure(answer: Answer) -> None:
    edges = 200_000 if answer.is_quick else 2_000_000
    answer.state(
        graphs=f"{edges:,} edges, {edges // EDGES_PER_NODE:,} nodes, drawn at random",
        layers=f"{WIDTH} -> {WIDTH}, float32",
        goal="within 1.3 times of the graph without the hub",
    )
    graphs = {1: draw_graphs(edges, 1), RELATIONS: draw_graphs(edges, RELATIONS)}
    for name, module in make_layers().items():
        relations = RELATIONS if name.startswith("RG") else 1
        for training in (False, True):
            case = f"{name}, {'training' if training else 'inference'}"
            if answer.wants(case):
                arms = [
                    Arm(hub, make_call(module, graph, training))
                    for hub, graph in graphs[relations].items()
                ]
                answer.compare(case, arms, baseline=NO_HUB, same=not_compared)


if __name__ == "__main__":
    answer_question(measure, rounds=15)
