"""Integer triples and edge lists."""

import gzip

import pytest

from shorthaul.errors import EdgeRangeError, GraphError, GraphFileError
from shorthaul.graphs import RelationalGraph


def write(tmp_path, text, name="some.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["some.csv", "some.tsv.gz"])
@pytest.mark.parametrize("gap", [", ", "\t", " "])
@pytest.mark.parametrize("header", ["", "s{0}p{0}o\n"])
def test_triples(tmp_path, name, gap, header) -> None:
    text = header.format(gap) + gap.join("013") + "\n" + gap.join("210") + "\n"
    graph = RelationalGraph.read(write(tmp_path, text, name), format="triples")
    assert graph.source.tolist() == [0, 2]
    assert graph.relation.tolist() == [1, 1]
    assert graph.target.tolist() == [3, 0]
    assert (graph.num_nodes, graph.num_relations) == (4, 2)


def test_columns_in_another_order(tmp_path) -> None:
    path = write(tmp_path, "0 1 5 0.25\n")
    graph = RelationalGraph.read(
        path, format="triples", columns=("source", "target", "relation", None), num_nodes=9
    )
    assert (graph.num_nodes, graph.num_relations, graph.target.tolist()) == (9, 6, [1])


def test_an_edge_list(tmp_path) -> None:
    path = write(tmp_path, "# a comment\n0 1\n1 2\n", "edges.txt")
    graph = RelationalGraph.read(path)
    assert (graph.num_nodes, graph.num_edges, graph.num_relations) == (3, 2, 1)


def test_weights_must_be_passed_over_by_name(tmp_path) -> None:
    path = write(tmp_path, "0 1 0.5\n1 2 0.5\n", "edges.txt")
    with pytest.raises(GraphFileError, match="with None for one to pass over"):
        RelationalGraph.read(path, format="edge_list")
    graph = RelationalGraph.read(path, format="edge_list", columns=("source", "target", None))
    assert graph.num_edges == 2


def test_a_negative_id_is_an_edge_out_of_range(tmp_path) -> None:
    with pytest.raises(EdgeRangeError, match="the source of edge 1 is -2"):
        RelationalGraph.read(write(tmp_path, "0 1\n-2 1\n", "edges.txt"))


def test_a_header_can_be_denied(tmp_path) -> None:
    path = write(tmp_path, "s,o\n0,1\n")
    with pytest.raises(GraphFileError, match="line 1: expected a whole number as its source"):
        RelationalGraph.read(path, format="edge_list", has_header=False)


def test_lines_that_are_skipped_are_counted(tmp_path) -> None:
    graph = RelationalGraph.read(write(tmp_path, "0,0,1\n0,1\n"), format="triples", strict=False)
    assert (graph.num_edges, graph.skipped_lines) == (1, 1)


@pytest.mark.parametrize("columns", [("source",), ("source", "source"), ("head", "tail"), ()])
def test_columns_that_make_no_edge_are_refused(tmp_path, columns) -> None:
    with pytest.raises(GraphError, match="columns must name source and target"):
        RelationalGraph.read(write(tmp_path, "0 1\n"), format="edge_list", columns=columns)
