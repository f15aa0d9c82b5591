"""The orders in which a graph's edges are read, each as a few plain tensors.

Every index holds the dtype of its graph, `E` edges, `N` nodes, `R` relations. Edge ids are positions
in the order in which the user gave the edges; whatever is stable keeps that order among equals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class TargetIndex:
    """Incoming edges of each node: sorted by target, then by relation, stable (CSC).

    Node `n` hears from `sources[pointers[n]:pointers[n + 1]]`.
    """

    pointers: torch.Tensor  # (N + 1,)
    sources: torch.Tensor  # (E,)
    relations: torch.Tensor  # (E,)
    edges: torch.Tensor  # (E,) edge ids


@dataclass(frozen=True, eq=False)
class SourceIndex:
    """Outgoing edges of each node: sorted by source, then by relation, stable (CSR)."""

    pointers: torch.Tensor  # (N + 1,)
    targets: torch.Tensor  # (E,)
    relations: torch.Tensor  # (E,)
    edges: torch.Tensor  # (E,) edge ids


@dataclass(frozen=True, eq=False)
class RelationIndex:
    """Edges of each relation: `edges[pointers[r]:pointers[r + 1]]`, in the order they were given."""

    pointers: torch.Tensor  # (R + 1,)
    edges: torch.Tensor  # (E,) edge ids
    sources: torch.Tensor  # (E,) of these edges
    targets: torch.Tensor  # (E,)


@dataclass(frozen=True, eq=False)
class PairIndex:
    """The distinct (relation, node) pairs of one end of the edges, by relation, then by node.

    What depends on nothing else of an edge needs computing once per pair, `U` times, and edge `e`
    reads row `edge_to_pair[e]`. The edges of pair `u` are
    `pair_edges[pair_pointers[u]:pair_pointers[u + 1]]`, in the order they were given.
    """

    pointers: torch.Tensor  # (R + 1,) into the pairs
    nodes: torch.Tensor  # (U,)
    edge_to_pair: torch.Tensor  # (E,)
    pair_pointers: torch.Tensor  # (U + 1,) into pair_edges
    pair_edges: torch.Tensor  # (E,) edge ids

    @property
    def num_pairs(self) -> int:
        """How many pairs occur."""
        return self.nodes.numel()
