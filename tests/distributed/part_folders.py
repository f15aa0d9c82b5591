"""Small graphs with features, and the folders of parts that they are cut into."""

from __future__ import annotations

from pathlib import Path

import torch

from shorthaul.distributed import partition
from shorthaul.graphs import RelationalGraph

WIDTH = 6


def drawn_graph(nodes: int = 60, edges: int = 400, seed: int = 0) -> RelationalGraph:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    near = (ends[0] + torch.randint(-4, 5, (edges,), generator=generator)) % nodes
    return RelationalGraph.from_edges(near, ends[0], num_nodes=nodes)


def typed_graph(seed: int = 0) -> RelationalGraph:
    generator = torch.Generator().manual_seed(seed)

    def draw(one: int, other: int, count: int) -> torch.Tensor:
        ends = [torch.randint(each, (count,), generator=generator) for each in (one, other)]
        return torch.stack(ends)

    return RelationalGraph.from_typed_edges(
        {
            ("author", "writes", "paper"): draw(20, 30, 90),
            ("paper", "cites", "paper"): draw(30, 30, 80),
            ("paper", "has author", "author"): draw(30, 20, 70),
        },
        {"author": 20, "paper": 30},
    )


def features_of(rows: int, width: int = WIDTH, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def cut_homogeneous(folder: Path, parts: int, **options: object) -> dict[str, torch.Tensor]:
    """A folder of parts of `drawn_graph`, and what it was made of."""
    graph = drawn_graph()
    made = {
        "features": features_of(graph.num_nodes),
        "labels": torch.arange(graph.num_nodes) % 5,
        "seeds": torch.arange(0, graph.num_nodes, 2),
    }
    partition(graph, folder, parts, **{"fan_outs": (3, 2), "batch_size": 8, **made, **options})  # type: ignore[arg-type]
    return made
