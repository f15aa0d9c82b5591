"""Folders laid out as the Open Graph Benchmark lays out its downloads."""

import gzip

import pytest

from shorthaul.errors import GraphFileError
from shorthaul.graphs import Relation, RelationalGraph


def pack(path, text) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def plain(tmp_path):
    pack(tmp_path / "raw" / "edge.csv.gz", "0,1\n1,2\n")
    pack(tmp_path / "raw" / "num-node-list.csv.gz", "4\n")
    pack(tmp_path / "raw" / "num-edge-list.csv.gz", "2\n")
    return tmp_path


@pytest.fixture
def typed(tmp_path):
    raw = tmp_path / "raw"
    pack(raw / "num-node-dict.csv.gz", "author,paper\n2,3\n")
    pack(raw / "triplet-type-list.csv.gz", "author,writes,paper\npaper,cites,paper\n")
    pack(raw / "relations" / "author___writes___paper" / "edge.csv.gz", "0,2\n1,0\n")
    pack(raw / "relations" / "author___writes___paper" / "num-edge-list.csv.gz", "2\n")
    pack(raw / "relations" / "paper___cites___paper" / "edge.csv.gz", "0,1\n")
    pack(raw / "relations" / "paper___cites___paper" / "num-edge-list.csv.gz", "1\n")
    return tmp_path


def test_one_node_type(plain) -> None:
    for path in (plain, plain / "raw"):
        graph = RelationalGraph.read(path)
        assert (graph.num_nodes, graph.source.tolist(), graph.target.tolist()) == (
            4,
            [0, 1],
            [1, 2],
        )


def test_edges_with_relations(plain) -> None:
    pack(plain / "raw" / "edge_reltype.csv.gz", "3\n0\n")
    graph = RelationalGraph.read(plain)
    assert (graph.num_relations, graph.relation.tolist()) == (4, [3, 0])


def test_several_node_types(typed) -> None:
    graph = RelationalGraph.read(typed)
    assert graph.node_types == ("author", "paper")
    assert graph.nodes_per_type == (2, 3)
    assert graph.relations == (
        Relation("author", "writes", "paper"),
        Relation("paper", "cites", "paper"),
    )
    assert graph.source.tolist() == [0, 1, 2]
    assert graph.target.tolist() == [4, 2, 3]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("num-node-list.csv.gz", "4\n5\n", "expected one count, for one graph, got 2 lines"),
        ("num-node-list.csv.gz", "four\n", "line 1: expected a count, got 'four'"),
        ("num-edge-list.csv.gz", "3\n", r"promises 3 edges, but edge\.csv\.gz has 2"),
        ("edge.csv.gz", "0,1,2\n", "line 1: expected 2 fields"),
    ],
)
def test_what_is_wrong_is_named(plain, name, text, message) -> None:
    pack(plain / "raw" / name, text)
    with pytest.raises(GraphFileError, match=message):
        RelationalGraph.read(plain)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "num-node-dict.csv.gz",
            "author,paper\n2,3\n4,5\n",
            "one line with a count for each, got 3 lines",
        ),
        ("num-node-dict.csv.gz", "author,paper\n2,x\n", "line 2: expected a count, got 'x'"),
        ("triplet-type-list.csv.gz", "author,writes\n", "line 1: expected source type, relation"),
        ("triplet-type-list.csv.gz", "a,b,c\n", r"a___b___c/edge\.csv\.gz: cannot be opened"),
    ],
)
def test_what_is_wrong_with_types_is_named(typed, name, text, message) -> None:
    pack(typed / "raw" / name, text)
    with pytest.raises(GraphFileError, match=message):
        RelationalGraph.read(typed)


def test_a_missing_or_damaged_part(plain, tmp_path) -> None:
    (plain / "raw" / "num-node-list.csv.gz").write_bytes(b"plain")
    with pytest.raises(GraphFileError, match=r"num-node-list\.csv\.gz, line 1: expected a count"):
        RelationalGraph.read(plain)
    for damaged in (gzip.compress(b"4\n")[:-9], gzip.compress(b"4\n", mtime=0)[:10] + b"\xff" * 9):
        (plain / "raw" / "num-node-list.csv.gz").write_bytes(damaged)
        with pytest.raises(
            GraphFileError, match=r"num-node-list\.csv\.gz: its gzip data is damaged"
        ):
            RelationalGraph.read(plain)
    (plain / "raw" / "edge.csv.gz").unlink()
    with pytest.raises(GraphFileError, match="found neither"):
        RelationalGraph.read(plain, format="ogb")
