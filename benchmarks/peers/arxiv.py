"""ogbn-arxiv as plain tensors, for benchmarks in our environment and in the peers'.

The complete data set, edges in both directions, as is usual for it. It lies in `../shared/data` beside
the project and is not part of it; this file imports nothing of shorthaul.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "ogbn_arxiv"
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


def start_alike(
    model: torch.nn.Module, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], seed: int
) -> None:
    """The same numbers whatever the library: Glorot's for matrices, drawn layer by layer; biases zero.

    `layers` has the matrix for a node itself and the one for its neighbors, of each layer.
    """
    generator = torch.Generator().manual_seed(seed)
    gain = torch.nn.init.calculate_gain("relu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for matrix in itertools.chain.from_iterable(layers):
            torch.nn.init.xavier_uniform_(matrix, gain, generator=generator)


def draw_times(data: Arxiv) -> torch.Tensor:
    """A time for each paper, of thirty: what matters is that half of the neighbors are too late."""
    return torch.arange(data.num_nodes) * 7919 % 30


def draw_weights(data: Arxiv) -> torch.Tensor:
    """A weight for each edge, in (0, 1]."""
    edges = data.edge_index.shape[1]
    return 1.0 - torch.rand(edges, generator=torch.Generator().manual_seed(2))


def shuffle(ids: torch.Tensor, seed: int) -> torch.Tensor:
    """`ids` in an order that the seed fixes."""
    return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]


def shuffled_batches(ids: torch.Tensor, size: int, seed: int) -> list[torch.Tensor]:
    """`ids` in an order that the seed fixes, `size` at a time."""
    return list(shuffle(ids, seed).split(size))
