"""How long does a training step of R-GCN and of GAT take on a GPU, beside PyG and DGL?

Layers have the same parameters where a peer's formula is ours; results are compared within what float32 sums
in another order differ by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.device_arm import Run, Way, compare_ways, find_device
from benchmarks.measuring.measure import not_compared, same_within
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import GATConv, RGCNConv

PLAIN = "PyTorch"


def measure(answer: Answer) -> None:
    """Random edges with the sizes of FB15k-237 with inverse relations."""
    device = find_device()
    nodes, edges, relations, width = (
        (10, 30, 2, 16) if answer.is_quick else (14_541, 544_230, 474, 64)
    )
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(nodes, (2, edges), generator=draw)
    kind = torch.randint(relations, (edges,), generator=draw)
    graph = RelationalGraph.from_edges(
        source, target, kind, num_nodes=nodes, num_relations=relations
    )
    simple = RelationalGraph.from_edges(source, target, num_nodes=nodes)
    x = torch.randn(nodes, width, generator=draw).to(device)
    ends, kinds = torch.stack([source, target]).to(device), kind.to(device)
    answer.state(graph=f"{nodes:,} nodes, {edges:,} random edges, {relations} relations")
    ours = RGCNConv(width, width, relations).to(device)
    compare_ways(
        answer,
        f"RGCN {width}, forward and backward",
        [
            Way(
                PLAIN,
                lambda: _step(lambda: _plain_rgcn(ours, x, ends, kinds), [*ours.parameters()]),
            ),
            Way("PyG", lambda: _pyg_rgcn(ours, "RGCNConv", x, ends, kinds)),
            Way("PyG, FastRGCNConv", lambda: _pyg_rgcn(ours, "FastRGCNConv", x, ends, kinds)),
            Way("shorthaul", lambda: _step(lambda: ours(x, graph), [*ours.parameters()])),
        ],
        baseline=PLAIN,
        same=same_within(1e-3, 1e-3),
        device=device,
        has_peaks=True,
    )
    attention = GATConv(width, width // 4, heads=4).to(device)
    compare_ways(
        answer,
        f"GAT {width}, 4 heads, forward and backward",
        [
            Way("PyG", lambda: _pyg_gat(x, ends)),
            Way("DGL", lambda: _dgl_gat(x, source.to(device), target.to(device), nodes)),
            Way(
                "shorthaul", lambda: _step(lambda: attention(x, simple), [*attention.parameters()])
            ),
        ],
        baseline="shorthaul",
        same=not_compared,
        device=device,
        has_peaks=True,
    )


def _step(forward: Callable[[], torch.Tensor], parameters: list[torch.nn.Parameter]) -> Run:
    def run() -> torch.Tensor:
        for each in parameters:
            each.grad = None
        out = forward()
        out.square().mean().backward()
        return out.detach()

    return run


def _plain_rgcn(
    layer: RGCNConv, x: torch.Tensor, ends: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """Relation by relation, as one would write it: means of the messages, and the node itself."""
    out = x @ layer.root
    if layer.bias is not None:
        out = out + layer.bias
    for relation in range(layer.num_relations):
        source, target = ends[:, kinds == relation]
        sums = x.new_zeros(x.shape).index_add_(0, target, x[source])
        count = torch.bincount(target, minlength=len(x)).clamp(min=1)[:, None]
        out = out + (sums / count) @ layer.weight[relation]
    return out


def _pyg_rgcn(
    ours: RGCNConv, name: str, x: torch.Tensor, ends: torch.Tensor, kinds: torch.Tensor
) -> Run:
    from torch_geometric import nn

    layer: Any = getattr(nn, name)(x.shape[1], ours.root.shape[1], ours.num_relations).to(x.device)
    with torch.no_grad():
        for key, mine in ours.named_parameters():
            getattr(layer, key).copy_(mine)
    return _step(lambda: layer(x, ends, kinds), [*layer.parameters()])


def _pyg_gat(x: torch.Tensor, ends: torch.Tensor) -> Run:
    from torch_geometric.nn import GATConv as TheirGATConv

    layer = TheirGATConv(x.shape[1], x.shape[1] // 4, heads=4).to(x.device)
    return _step(lambda: layer(x, ends), [*layer.parameters()])


def _dgl_gat(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, nodes: int) -> Run:
    import dgl
    from dgl.nn.pytorch import GATConv as TheirGATConv

    graph = dgl.graph((source, target), num_nodes=nodes)
    layer = TheirGATConv(x.shape[1], x.shape[1] // 4, 4, allow_zero_in_degree=True).to(x.device)
    return _step(lambda: layer(graph, x), [*layer.parameters()])


if __name__ == "__main__":
    answer_question(measure)
