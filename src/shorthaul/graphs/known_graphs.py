"""Graphs found again by the tensors that they hold.

A model that `torch.compile` or `torch.export` recorded passes tensors, not objects. Whoever is handed
a graph's three columns gets the graph itself back, with the indexes that it has built so far.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch


class Columns(Protocol):
    """A `RelationalGraph`, as far as it is found by its columns."""

    @property
    def source(self) -> torch.Tensor:
        """The source of each edge."""

    @property
    def target(self) -> torch.Tensor:
        """The target of each edge."""

    @property
    def relation(self) -> torch.Tensor:
        """The relation of each edge."""


_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def remember_graph(graph: Columns) -> None:
    """Let `find_known_graph` find it for as long as it lives."""
    _known[id(graph.source)] = graph


def find_known_graph(source: torch.Tensor, target: torch.Tensor, relation: torch.Tensor) -> Any:
    """The graph whose columns are these very tensors.

    >>> from shorthaul.graphs import RelationalGraph
    >>> graph = RelationalGraph.from_edges([0, 1], [1, 2])
    >>> find_known_graph(graph.source, graph.target, graph.relation) is graph
    True
    """
    graph = _known.get(id(source))
    if graph is None or graph.source is not source:
        return None
    return graph if graph.target is target and graph.relation is relation else None
