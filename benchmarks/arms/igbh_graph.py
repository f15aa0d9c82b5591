"""A graph with the schema of IGBH, which MLPerf trains R-GAT on, drawn from a seed at any size.

Papers cite papers, are written by authors, are about fields of study, and appear in journals or at
conferences; authors are at institutes. Every relation also backwards, as in MLPerf's data. Degrees follow
power laws at both ends: few authors write much, few fields have most papers.

The real data are of hundreds of gigabytes. What is drawn has their types and relations, about as many nodes of
each type for each paper, and no meaning: it serves to measure time and memory, not accuracy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

CLASSES, WIDTH = 2983, 1024
# Nodes of each type for each paper, at least so many.
NODES = {
    "paper": (1.0, 64),
    "author": (1.9, 64),
    "institute": (0.015, 16),
    "fos": (0.19, 32),
    "journal": (0.02, 8),
    "conference": (0.002, 4),
}
# Edges of each relation for each paper, one way.
EDGES = {
    ("paper", "cites", "paper"): 11.0,
    ("paper", "written_by", "author"): 4.0,
    ("paper", "topic", "fos"): 6.5,
    ("author", "affiliated_to", "institute"): 1.6,
    ("paper", "published", "journal"): 0.6,
    ("paper", "venue", "conference"): 0.2,
}
STEEPNESS = 3.0  # degrees fall with the rank to the power of 1 / STEEPNESS - 1
ROWS_AT_ONCE = 50_000

EdgeType = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Edges by relation, and how many nodes each type has."""

    edges: Mapping[EdgeType, torch.Tensor]
    nodes: Mapping[str, int]


def draw_igbh(edges: int, seed: int = 0) -> Drawn:
    """About `edges` edges, those backwards included.

    >>> drawn = draw_igbh(10_000)
    >>> sum(each.shape[1] for each in drawn.edges.values()), len(drawn.edges)
    (10002, 12)
    """
    generator = torch.Generator().manual_seed(seed)
    papers = edges / (2 * sum(EDGES.values()))
    nodes = {kind: max(least, round(papers * share)) for kind, (share, least) in NODES.items()}
    orders = {
        kind: torch.randperm(count, generator=generator) for kind, count in nodes.items()
    }  # or all popular nodes would have the first ids
    found: dict[EdgeType, torch.Tensor] = {}
    for (source, name, target), share in EDGES.items():
        count = round(papers * share)
        ends = [
            orders[kind][_draw_ranks(nodes[kind], count, generator)] for kind in (source, target)
        ]
        found[source, name, target] = torch.stack(ends)
        found[target, f"rev_{name}", source] = torch.stack(ends[::-1])
    return Drawn(found, nodes)


def _draw_ranks(nodes: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Nodes by their popularity: the first ones often."""
    drawn = torch.rand(count, generator=generator, dtype=torch.float64) ** STEEPNESS
    return (drawn * nodes).long().clamp(max=nodes - 1)


def write_igbh(folder: Path, edges: int, width: int = WIDTH, seed: int = 0) -> None:
    """The graph as a file that every library reads, and features of each type as one each."""
    drawn = draw_igbh(edges, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    labels = torch.randint(CLASSES, (drawn.nodes["paper"],), generator=generator)
    seeds = torch.randperm(drawn.nodes["paper"], generator=generator)
    saved = {
        "edges": dict(drawn.edges),
        "nodes": dict(drawn.nodes),
        "labels": labels,
        "seeds": seeds,
    }
    torch.save(saved, folder / "graph.pt")
    for kind, count in drawn.nodes.items():
        path = folder / f"{kind}.npy"
        table = np.lib.format.open_memmap(path, "w+", np.float32, (count, width))
        for start in range(0, count, ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, count - start)
            table[start : start + rows] = torch.randn(rows, width, generator=generator).numpy()
        table.flush()
