"""The graphs of the relational benchmarks, from `../shared/data`, with inverse relations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from shorthaul.graphs import RelationalGraph

DATA = Path(__file__).parents[3] / "shared" / "data"
SMALL = ("aifb", "mutag", "wn18rr", "heco_dblp")
LARGE = ("fb15k-237", "ogbn_mag_10pct")
LARGEST = ("am_kgbench",)

# Files of pairs that hold a graph with node types: relation -> file, and the nodes of each type.
_DBLP = {
    ("paper", "of", "author"): "pa.txt",
    ("paper", "in", "conference"): "pc.txt",
    ("paper", "about", "term"): "pt.txt",
}
_DBLP_NODES = {"author": 4057, "paper": 14_328, "term": 7723, "conference": 20}
_MAG = {
    ("paper", "written-by", "author"): "written-by_coo_2.npy",
    ("author", "writing", "paper"): "writing_coo_2.npy",
    ("field", "has", "paper"): "has_coo_2.npy",
    ("paper", "is-about", "field"): "is-about_coo_2.npy",
    ("paper", "cited", "paper"): "cited_coo_2.npy",
    ("paper", "citing", "paper"): "citing_coo_2.npy",
}
_MAG_NODES = {"paper": 73_638, "author": 73_638, "field": 6001}


def load_graph(name: str) -> RelationalGraph:
    """A graph by name; every relation also backwards."""
    folder = DATA / name
    if name in ("aifb", "mutag"):
        graph = RelationalGraph.read(next(iter(sorted(folder.glob("*.nt.gz")))))
    elif name == "am_kgbench":
        graph = RelationalGraph.read(folder / "triples.int.csv.gz")
    elif name == "heco_dblp":
        pairs = {
            relation: torch.from_numpy(np.loadtxt(folder / file, dtype=np.int64).T.copy())
            for relation, file in _DBLP.items()
        }
        graph = RelationalGraph.from_typed_edges(pairs, _DBLP_NODES)
    elif name == "ogbn_mag_10pct":  # which has the inverses among its files
        pairs = {
            relation: torch.from_numpy(np.load(folder / file)) for relation, file in _MAG.items()
        }
        return RelationalGraph.from_typed_edges(pairs, _MAG_NODES)
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


def name_types(graph: RelationalGraph) -> RelationalGraph:
    """The same edges with relations that HGT can name: by number, where all nodes have one type."""
    if len(graph.node_types) > 1:
        return graph
    return RelationalGraph.from_edges(
        graph.source,
        graph.target,
        graph.relation,
        relations=[("node", str(number), "node") for number in range(graph.num_relations)],
        num_nodes=graph.num_nodes,
    )


def save_edges(graph: RelationalGraph, x: torch.Tensor, path: Path) -> None:
    """Edges sorted by relation, which is how peers are fastest, as a file that they can read."""
    order = graph.by_relation().edges.long()
    saved: dict[str, Any] = {
        "x": x,
        "edge_index": torch.stack([graph.source, graph.target]).long()[:, order],
        "edge_type": graph.relation.long()[order],
        "num_nodes": graph.num_nodes,
        "num_relations": graph.num_relations,
        "node_types": list(graph.node_types),
        "node_offsets": list(graph.node_offsets),
        "relations": [tuple(each) for each in graph.relations],
    }
    torch.save(saved, path)
