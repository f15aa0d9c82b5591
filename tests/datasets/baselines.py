"""Plain models for `python_graph`: what the features alone give, and what the graph adds.

`python -m tests.datasets.baselines` prints the table of docs/datasets.md (some minutes).
"""

from __future__ import annotations

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
    """R-GCN: the mean over each relation's neighbors, times the relation's own weight."""

    def __init__(self, graph: PythonGraph, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(len(graph.relations), width, width) / width**0.5 / 2)
        self.itself = nn.Linear(width, width)
        self.means, rows_of = [], []
        for number, relation in enumerate(graph.relations):
            sources, targets = graph.edges_of(*relation)
            if len(sources):
                rows, position, counts = targets.unique(return_inverse=True, return_counts=True)
                shape = (len(rows), graph.num_nodes)
                self.means.append((number, sparse(position, sources, 1 / counts[position], shape)))
                rows_of.append(rows)
        targets = torch.cat(rows_of)
        shape = (graph.num_nodes, len(targets))
        self.total = sparse(targets, torch.arange(len(targets)), torch.ones(len(targets)), shape)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weights = self.weight.unbind(0)
        parts = [torch.sparse.mm(mean, rows) @ weights[number] for number, mean in self.means]
        return self.itself(rows) + torch.sparse.mm(self.total, torch.cat(parts))


def sparse(
    rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """A matrix of the given entries: products with it are far quicker than `index_add`."""
    indices = torch.stack([rows, columns])
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce()


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
    """Measure every row, with two seeds each."""
    graph = python_graph()
    shuffled = with_shuffled_edges(graph)
    print(f"majority guess          {majority_accuracy(graph):.1%}")
    for name, data, make in (
        ("features only", graph, Perceptron),
        ("R-GCN, shuffled edges", shuffled.with_reversed(), RelationalNetwork),
        ("R-GCN", graph.with_reversed(), RelationalNetwork),
    ):
        found = [trained_accuracy(data, make, steps=100, seed=seed) for seed in range(2)]
        print(f"{name:<23} {found[0]:.1%}, {found[1]:.1%}", flush=True)


if __name__ == "__main__":
    main()
