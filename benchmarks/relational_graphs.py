"""The graphs of the relational benchmarks, from `../shared/data`, with inverse relations."""

from __future__ import annotations

from pathlib import Path

import torch

from shorthaul.graphs import RelationalGraph

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
NAMES = ("aifb", "mutag", "wn18rr", "fb15k-237")


def load_graph(name: str) -> RelationalGraph:
    """A graph by name; every relation also backwards."""
    folder = DATA / name
    if name in ("aifb", "mutag"):
        graph = RelationalGraph.read(next(iter(sorted(folder.glob("*.nt.gz")))))
    else:
        parts = [
            RelationalGraph.read(folder / f"{part}2id.txt") for part in ("train", "valid", "test")
        ]
        graph = RelationalGraph.from_edges(
            *(
                torch.cat([getattr(each, field) for each in parts])
                for field in ("source", "target", "relation")
            )
        )
    return graph.with_inverses()


def save_edges(graph: RelationalGraph, path: Path) -> None:
    """Edges sorted by relation, which is how peers are fastest, as a file that they can read."""
    order = graph.by_relation().edges.long()
    torch.save(
        {
            "edge_index": torch.stack([graph.source, graph.target]).long()[:, order],
            "edge_type": graph.relation.long()[order],
            "num_nodes": graph.num_nodes,
            "num_relations": graph.num_relations,
        },
        path,
    )
