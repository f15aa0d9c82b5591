"""R-GCN and RGAT as one writes them in PyTorch: for the demo, where PyG is not installed."""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.graphs import RelationalGraph


class PlainEdges:
    """Sources and targets of a graph's edges, by relation, and what a mean over each relation needs."""

    def __init__(self, graph: RelationalGraph) -> None:
        index = graph.by_relation()
        self.sources, self.targets = index.sources.long(), index.targets.long()
        self.counts = index.pointers.diff().tolist()
        relations = torch.arange(
            len(self.counts), dtype=torch.int64, device="cpu"
        ).repeat_interleave(torch.tensor(self.counts, dtype=torch.int64, device="cpu"))
        _, pairs, sizes = torch.unique(
            relations * graph.num_nodes + self.targets, return_inverse=True, return_counts=True
        )
        self.shares = sizes.float().reciprocal()[pairs][:, None]

    def project(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A row for each edge, times the weight of its relation."""
        parts = torch.split(rows, self.counts)
        return torch.cat([part @ each for part, each in zip(parts, weight, strict=True)])

    def add_up(self, messages: torch.Tensor, num_nodes: int) -> torch.Tensor:
        """The sum of what comes to each node."""
        total = messages.new_zeros(num_nodes, messages.shape[1])
        return total.index_add(0, self.targets, messages)


def plain_rgcn(layer: Any, x: torch.Tensor, edges: PlainEdges) -> torch.Tensor:
    """What an `RGCNConv` with a root weight and a bias computes, with its parameters."""
    messages = edges.shares * edges.project(x[edges.sources], layer.weight)
    out: torch.Tensor = edges.add_up(messages, len(x)) + x @ layer.root + layer.bias
    return out


def plain_rgat(layer: Any, x: torch.Tensor, edges: PlainEdges) -> torch.Tensor:
    """What an `RGATConv` with one head computes, with its parameters."""
    values = edges.project(x[edges.sources], layer.weight)
    asking = edges.project(x[edges.targets], layer.weight)
    logits = torch.nn.functional.leaky_relu(asking @ layer.q + values @ layer.k, 0.2)
    index = edges.targets[:, None].expand_as(logits)
    most = logits.new_full((len(x), logits.shape[1]), -torch.inf)
    most = most.scatter_reduce(0, index, logits.detach(), "amax")
    shares = (logits - most[edges.targets]).exp()
    shares = shares / edges.add_up(shares, len(x))[edges.targets]
    out: torch.Tensor = edges.add_up(shares * values, len(x)) + layer.bias
    return out
