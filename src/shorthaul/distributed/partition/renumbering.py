"""Numbers for nodes under which the nodes of a part are neighbors.

>>> from shorthaul.graphs import RelationalGraph
>>> graph = RelationalGraph.from_edges([0], [1], num_nodes=4)
>>> numbering = plan_renumbering(graph, torch.tensor([1, 0, 1, 0], dtype=torch.int32), 2)
>>> numbering.originals["node"].tolist(), numbering.numbers.tolist(), numbering.book.offsets
([1, 3, 0, 2], [2, 0, 3, 1], {'node': (0, 2, 4)})
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.graphs import RelationalGraph


@dataclass(frozen=True, eq=False)
class Renumbering:
    """Both directions: ids of the parts to those of the graph, and back."""

    book: PartitionBook
    originals: Mapping[
        str, torch.Tensor
    ]  # for each type, by id of the parts: the graph's, within the type
    numbers: torch.Tensor  # by the graph's global id: that of the parts


def plan_renumbering(graph: RelationalGraph, places: torch.Tensor, parts: int) -> Renumbering:
    """Within each type by part, and within a part as before."""
    dtype = graph.index_dtype
    numbers = torch.empty(graph.num_nodes, dtype=dtype, device="cpu")
    originals: dict[str, torch.Tensor] = {}
    offsets: dict[str, tuple[int, ...]] = {}
    for name in graph.node_types:
        of_type = graph.nodes_of(name)
        own = places[of_type.start : of_type.stop]
        order = torch.argsort(own, stable=True)
        numbers[order + of_type.start] = torch.arange(
            of_type.start, of_type.stop, dtype=dtype, device="cpu"
        )
        originals[name] = order.to(dtype)
        counts = torch.bincount(own, minlength=parts).tolist()
        offsets[name] = tuple(itertools.accumulate(counts, initial=0))
    return Renumbering(PartitionBook(offsets), originals, numbers)
