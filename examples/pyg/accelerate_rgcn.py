"""Train PyG's own R-GCN, then let shorthaul compute the same layers, with the same parameters.

    python examples/pyg/accelerate_rgcn.py

The graph is drawn here. Both trainings begin with the same weights; their losses agree within rounding.
"""

from __future__ import annotations

import argparse
import copy
import time

import rich
import torch
from torch import nn
from torch_geometric.nn import RGCNConv

import shorthaul as sh


class Model(nn.Module):
    """Two layers of PyG."""

    def __init__(self, width: int, relations: int, classes: int) -> None:
        super().__init__()
        self.first = RGCNConv(width, width, relations)
        self.second = RGCNConv(width, classes, relations)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each node."""
        return self.second(self.first(x, edges, types).relu(), edges, types)


def train(model: nn.Module, steps: int, *data: torch.Tensor) -> tuple[list[float], float]:
    """The losses, and the seconds of the later half of the steps."""
    *inputs, labels = data
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses, started = [], time.perf_counter()
    for step in range(steps):
        if step == steps // 2:
            started = time.perf_counter()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=5_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    nodes, edges, relations = options.nodes, 10 * options.nodes, 20
    data = (
        torch.randn(nodes, 64),
        torch.randint(nodes, (2, edges)),
        torch.randint(relations, (edges,)),
        torch.randint(5, (nodes,)),
    )
    plain = Model(64, relations, 5)
    ours = copy.deepcopy(plain)
    report = sh.relational.accelerate(ours)  # the one line
    rich.print(report.table())
    (expected, plain_seconds), (got, our_seconds) = (
        train(model, options.steps, *data) for model in (plain, ours)
    )
    if not torch.allclose(torch.tensor(expected), torch.tensor(got), rtol=1e-3):
        raise SystemExit(f"the losses differ: {expected} and {got}")
    print(f"{options.steps} steps, the losses agree: {expected[-1]:.4f} and {got[-1]:.4f}")
    print(
        f"gained: {our_seconds:.2f} s instead of {plain_seconds:.2f} s for the later half of them"
    )


if __name__ == "__main__":
    main()
