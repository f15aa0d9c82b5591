"""Write a relational layer in a few lines, have it compiled, and tell functions apart with it.

    python examples/own_layer/write_your_own_layer.py

The graph is the source of the Python standard library on this machine: who defines, calls, imports
and inherits what. The task is to tell what a function gives back. The layer below exists in no library:
attention in which every relation has its own gate. It is compiled to C++, forward and backward. The
same training by plain PyTorch, one tensor per step of the program, has the same losses.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import nn

import shorthaul as sh
from shorthaul.relational import (
    NodeFeature,
    RelationalGraph,
    Weight,
    layer,
    leaky_relu,
    linear,
    sigmoid,
    softmax,
)


@layer
def gated_attention(
    g,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "out"),
    gate: Weight("relation", "out"),
    query: Weight("out", 1),
    key: Weight("out", 1),
    own: Weight("width", "out"),
    bias: Weight("out"),
):
    """Sources projected by relation, shares by attention, each feature let through by its gate."""
    for e in g.edges():
        e.value = linear(e.source.x, weight[e.relation])
        asked = linear(linear(e.target.x, weight[e.relation]), query)
        e.share = softmax(leaky_relu(asked + linear(e.value, key)))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.share * e.value * sigmoid(gate[e.relation])
        n.out = n.heard + linear(n.x, own) + bias
    return n.out


class Classifier(nn.Module):
    """Two layers of our own."""

    def __init__(self, relations: int, width: int, classes: int) -> None:
        super().__init__()
        self.first = gated_attention(relations=relations, width=width, out=32)
        self.second = gated_attention(relations=relations, width=32, out=classes)

    def forward(self, graph: RelationalGraph, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each node."""
        return self.second(graph, self.first(graph, x).relu())


def train(
    data: sh.datasets.PythonGraph, backend: str, steps: int
) -> tuple[list[float], float, float]:
    """Losses, seconds per step, and the share of functions told right in the end."""
    torch.manual_seed(0)
    graph = data.graph()
    model = Classifier(graph.num_relations, data.features.shape[1], data.num_classes)
    for each in (model.first, model.second):
        each.function.backend = backend
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses, started = [], time.perf_counter()
    for number in range(steps):
        if number == 1:  # the first one compiled the layers
            started = time.perf_counter()
        scores = model(graph, data.features)
        loss = nn.functional.cross_entropy(scores[data.train], data.labels[data.train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - started) / max(1, steps - 1)
    with torch.no_grad():
        told = model(graph, data.features)[data.test].argmax(1)
    return losses, seconds, float((told == data.labels[data.test]).float().mean())


def main() -> None:
    """Train twice and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", type=int, default=120, help="files of the library to read")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    data = sh.datasets.python_graph(options.modules).with_reversed()
    print(f"{data.num_nodes:,} nodes, {data.num_edges:,} edges, {len(data.relations)} relations")
    plain, plain_seconds, _ = train(data, "reference", options.steps)
    ours, seconds, share = train(data, "auto", options.steps)
    print(f"plain PyTorch  {plain[0]:.4f} -> {plain[-1]:.4f}   {1e3 * plain_seconds:.0f} ms a step")
    print(f"compiled       {ours[0]:.4f} -> {ours[-1]:.4f}   {1e3 * seconds:.0f} ms a step")
    print(f"{share:.0%} of the functions in the test set are told right")
    largest = max(abs(one - other) for one, other in zip(plain, ours, strict=True))
    if largest > 5e-3:
        sys.exit(f"the losses differ by {largest:.2g}")
    print(f"the losses agree: the largest difference is {largest:.1e}")


if __name__ == "__main__":
    main()
