"""`RelationalGraph.read` as a whole, on made files and on real ones."""

from pathlib import Path

import numpy as np
import pytest

from shorthaul.errors import GraphError
from shorthaul.graphs import RelationalGraph

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="the real graphs are not in ../shared/data"
)
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def test_a_file_for_each_relation(tmp_path) -> None:
    (tmp_path / "writes.txt").write_text("0 2\n1 0\n")
    np.save(tmp_path / "cites.npy", np.array([[0], [1]], dtype=np.int32))
    graph = RelationalGraph.read(
        {WRITES: tmp_path / "writes.txt", CITES: str(tmp_path / "cites.npy")},
        nodes_per_type={"author": 2, "paper": 4},
    )
    assert graph.relations == (WRITES, CITES)
    assert graph.source.tolist() == [0, 1, 2]
    assert graph.target.tolist() == [4, 2, 3]


def test_what_cannot_be_one_relation(tmp_path) -> None:
    (tmp_path / "x.nt").touch()
    with pytest.raises(GraphError, match=r"x\.nt is n_triples"):
        RelationalGraph.read({WRITES: tmp_path / "x.nt"})


def test_a_format_that_does_not_exist(tmp_path) -> None:
    with pytest.raises(
        GraphError, match="there is no format 'turtle'; there are n_triples, triples"
    ):
        RelationalGraph.read(tmp_path, format="turtle")


# Nodes, edges, relations, and the distinct (source, relation) and (target, relation) pairs, as they
# were counted by other means.
COUNTS = {
    "aifb/aifb_stripped.nt.gz": (8_285, 29_043, 45, 0.550, 0.359, 0.455),
    "mutag/mutag_stripped.nt.gz": (23_644, 74_227, 23, 0.591, 0.438, 0.515),
    "fb15k-237": (14_541, 310_116, 237, 0.330, 0.193, 0.261),
    "wn18rr": (40_943, 93_003, 11, 0.711, 0.461, 0.586),
    "am_kgbench/triples.int.csv.gz": (1_080_876, 1_360_749, 12, 0.979, 0.159, 0.569),
}


@needs_data
@pytest.mark.parametrize("name", COUNTS)
def test_real_graphs_have_their_counts(name: str) -> None:
    graph = RelationalGraph.read(DATA / name)
    nodes, edges, relations, sources, targets, both = COUNTS[name]
    assert (graph.num_nodes, graph.num_edges, graph.num_relations) == (nodes, edges, relations)
    assert round(graph.pairs("source").num_pairs / edges, 3) == sources
    assert round(graph.pairs("target").num_pairs / edges, 3) == targets
    inverses = graph.with_inverses()
    pairs = inverses.pairs("source").num_pairs
    assert pairs == inverses.pairs("target").num_pairs
    assert pairs == graph.pairs("source").num_pairs + graph.pairs("target").num_pairs
    assert round(pairs / inverses.num_edges, 3) == both


@needs_data
def test_the_real_graph_that_the_goals_are_about() -> None:
    graph = RelationalGraph.read(DATA / "fb15k-237").with_inverses()
    assert (graph.num_edges, graph.num_relations) == (620_232, 474)
    assert graph.pairs("source").num_pairs == 161_922


@needs_data
def test_a_tenth_of_ogbn_mag() -> None:
    folder = DATA / "ogbn_mag_10pct"
    ends = {
        "cited": ("paper", "paper"),
        "citing": ("paper", "paper"),
        "has": ("paper", "field"),
        "is-about": ("field", "paper"),
        "writing": ("author", "paper"),
        "written-by": ("paper", "author"),
    }
    files = {
        (one, name, other): folder / f"{name}_coo_2.npy" for name, (one, other) in ends.items()
    }
    graph = RelationalGraph.read(files)
    assert (graph.num_edges, graph.num_relations) == (345_172, 6)
    assert round(graph.pairs("source").num_pairs / graph.num_edges, 3) == 0.412


@needs_data
def test_dblp_and_arxiv() -> None:
    folder = DATA / "heco_dblp"
    graph = RelationalGraph.read(
        {
            ("paper", "by", "author"): folder / "pa.txt",
            ("paper", "has", "term"): folder / "pt.txt",
            ("paper", "at", "conference"): folder / "pc.txt",
        }
    )
    assert dict(zip(graph.node_types, graph.nodes_per_type, strict=True)) == {
        "paper": 14_328,
        "author": 4_057,
        "term": 7_723,
        "conference": 20,
    }
    assert graph.edges_per_relation == (19_645, 85_810, 14_328)
    arxiv = RelationalGraph.read(DATA / "ogbn_arxiv" / "edge_index.npy")
    assert (arxiv.num_nodes, arxiv.num_edges) == (169_343, 1_166_243)
