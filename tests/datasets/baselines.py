"""Plain models for `python_graph`: what the features alone give, and what the graph adds.

`python -m tests.datasets.baselines` prints the table of docs/datasets.md (some minutes).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from shorthaul.datasets import PythonGraph, python_graph


class Perceptron(nn.Module):
    """Sees a function's own features and nothing of the graph."""

    def __init__(self, graph: PythonGraph, width: int = 64) -> None:
        super().__init__()
        self.features = graph.features
        self.layers = nn.Sequential(
            nn.Linear(graph.features.shape[1], width),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(width, graph.num_classes),
        )

    def forward(self) -> torch.Tensor:
        return self.layers(self.features)


class RelationalConvolution(nn.Module):
    """R-GCN: the mean over each relation's neighbours, times the relation's own weight."""

    def __init__(self, graph: PythonGraph, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(len(graph.relations), width, width) / width**0.5 / 2)
        self.itself = nn.Linear(width, width)
        self.parts = []
        for number, relation in enumerate(graph.relations):
            sources, targets = graph.edges_of(*relation)
            if len(sources):
                rows, position, counts = targets.unique(return_inverse=True, return_counts=True)
                self.parts.append((number, sources, rows, position, counts[:, None].float()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out = self.itself(rows)
        for number, sources, targets, position, counts in self.parts:
            total = rows.new_zeros(len(targets), rows.shape[1])
            mean = total.index_add(0, position, rows[sources]) / counts
            out = out.index_add(0, targets, mean @ self.weight[number])
        return out


class RelationalNetwork(nn.Module):
    """Two relational layers with shortcuts; also tells node types apart."""

    def __init__(self, graph: PythonGraph, width: int = 32) -> None:
        super().__init__()
        self.features, self.node_type = graph.features, graph.node_type
        self.enter = nn.Linear(graph.features.shape[1], width)
        self.by_type = nn.Embedding(len(graph.node_types), width)
        self.layers = nn.ModuleList(RelationalConvolution(graph, width) for _ in range(2))
        self.leave = nn.Linear(width, graph.num_classes)

    def forward(self) -> torch.Tensor:
        rows = functional.relu(self.enter(self.features) + self.by_type(self.node_type))
        for layer in self.layers:
            rows = rows + functional.dropout(functional.relu(layer(rows)), 0.3, self.training)
        return self.leave(rows)


def majority_accuracy(graph: PythonGraph) -> float:
    """Test accuracy of always guessing the class that is most frequent in training."""
    guess = torch.bincount(graph.labels[graph.train]).argmax()
    return (graph.labels[graph.test] == guess).float().mean().item()


def trained_accuracy(
    graph: PythonGraph, make: Callable[[PythonGraph], nn.Module], steps: int, seed: int = 0
) -> float:
    """Test accuracy at the step that was best in validation (looked at every tenth step)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make(graph)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
        best = (0.0, 0.0)
        for step in range(1, steps + 1):
            model.train()
            loss = functional.cross_entropy(model()[graph.train], graph.labels[graph.train])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                model.eval()
                with torch.no_grad():
                    right = (model().argmax(1) == graph.labels).float()
                validation, test = right[graph.validation].mean(), right[graph.test].mean()
                best = max(best, (validation.item(), test.item()))
    return best[1]


def with_shuffled_edges(graph: PythonGraph) -> PythonGraph:
    """The same degrees, relation by relation, but each edge leads to somebody else's target."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for relation in graph.relations:
        sources, targets = graph.edges_of(*relation)
        order = torch.randperm(len(targets), generator=generator)
        parts.append(torch.stack([sources, targets[order]]))
    return replace(graph, edge_index=torch.cat(parts, dim=1))


def main() -> None:
    """Measure every row, three seeds each."""
    graph = python_graph()
    both = graph.with_reversed()
    shuffled = with_shuffled_edges(graph).with_reversed()
    print(graph.summary().split("edges:")[0])
    print(f"majority guess             {majority_accuracy(graph):.1%}")
    arms = (
        ("features only", graph, Perceptron, 100),
        ("R-GCN, shuffled edges", shuffled, RelationalNetwork, 100),
        ("R-GCN", both, RelationalNetwork, 100),
    )
    for name, data, make, steps in arms:
        started = time.perf_counter()
        found = [trained_accuracy(data, make, steps, seed) for seed in range(3)]
        seconds = (time.perf_counter() - started) / 3
        shown = ", ".join(f"{each:.1%}" for each in found)
        print(f"{name:<26} {shown}   ({seconds:.0f} s each)", flush=True)


if __name__ == "__main__":
    main()
