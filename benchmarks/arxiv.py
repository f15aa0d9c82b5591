"""ogbn-arxiv as plain tensors, for benchmarks in our environment and in the peers'.

The complete data set, edges in both directions, as is usual for it. It lies in `../shared/data` beside
the project and is not part of it; this file imports nothing of shorthaul.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "ogbn_arxiv"
CLASSES = 40


@dataclass(frozen=True)
class Arxiv:
    """A citation graph of papers, to be told apart by subject."""

    edge_index: torch.Tensor  # (2, 2,332,486) int64, both directions
    features: torch.Tensor  # (169,343, 128) float32
    labels: torch.Tensor  # (169,343,) int64
    train: torch.Tensor  # ids
    test: torch.Tensor

    @property
    def num_nodes(self) -> int:
        """Papers."""
        return self.features.shape[0]


def load_arxiv() -> Arxiv:
    """Read it; `FileNotFoundError` where it is not there."""
    one_way = torch.from_numpy(np.load(FOLDER / "edge_index.npy")).long()
    split = torch.from_numpy(np.load(FOLDER / "split_0train_1valid_2test.npy")).flatten()
    return Arxiv(
        torch.cat([one_way, one_way.flip(0)], dim=1),
        torch.from_numpy(np.load(FOLDER / "node_feat.npy")),
        torch.from_numpy(np.load(FOLDER / "node_label.npy")).long().flatten(),
        (split == 0).nonzero()[:, 0],
        (split == 2).nonzero()[:, 0],
    )


def shuffled_batches(ids: torch.Tensor, size: int, seed: int) -> list[torch.Tensor]:
    """`ids` in an order that the seed fixes, `size` at a time."""
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    return list(ids[order].split(size))


def start_alike(model: torch.nn.Module) -> None:
    """The same initial distribution whatever the library: Glorot's for matrices, zero for biases."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_uniform_(parameter, torch.nn.init.calculate_gain("relu"))
        else:
            torch.nn.init.zeros_(parameter)
