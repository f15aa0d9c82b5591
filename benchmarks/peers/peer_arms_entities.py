"""R-GCN entity classification with PyG: arms for `bench_entity_accuracy.py`, in the peers' environment.

An arm trains one model from the parameters in a file; it returns every step's loss, and the accuracy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def make_pyg(
    task: str, state: str, epochs: int, weight_decay: float, threads: int
) -> Callable[[], dict[str, torch.Tensor]]:
    """PyG's `FastRGCNConv`, which is `RGCNConv` without its loop over relations."""
    from torch_geometric.nn import FastRGCNConv

    torch.set_num_threads(threads)
    given, saved = torch.load(task), torch.load(state)

    class RGCN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            nodes, relations, bases = given["num_nodes"], given["num_relations"], given["bases"]
            self.first = FastRGCNConv(nodes, given["hidden"], relations, bases)
            self.second = FastRGCNConv(given["hidden"], given["num_classes"], relations, bases)

        def forward(self) -> torch.Tensor:
            edges = given["edge_index"], given["edge_type"]
            scores: torch.Tensor = self.second(self.first(None, *edges).relu(), *edges)
            return scores

    def train() -> dict[str, torch.Tensor]:
        model = RGCN()
        model.load_state_dict(saved)
        optimizer = torch.optim.Adam(
            model.parameters(), 0.01, weight_decay=weight_decay, fused=True
        )
        nodes, classes = given["train"]
        losses = []
        for _ in range(epochs):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model()[nodes], classes)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        nodes, classes = given["test"]
        with torch.no_grad():
            told = model()[nodes].argmax(1)
        accuracy = (told == classes).float().mean()
        return {"losses": torch.tensor(losses), "accuracy": accuracy}

    return train


ARMS = {"pyg": make_pyg}
