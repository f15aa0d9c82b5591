"""OpenKE's folders."""

import pytest

from shorthaul.errors import GraphFileError
from shorthaul.graphs import RelationalGraph


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train2id.txt").write_text("2\n0 1 0\n1 2 1\n")
    (tmp_path / "test2id.txt").write_text("1\n2 0 1\n")
    (tmp_path / "entity2id.txt").write_text("4\na b\t1\nc\t0\nd 2\ne\t3\n")
    (tmp_path / "relation2id.txt").write_text("3\nfirst\t0\nsecond\t1\nthird\t2\n")
    return tmp_path


def test_a_folder(folder) -> None:
    graph = RelationalGraph.read(folder)
    assert graph.source.tolist() == [0, 1, 2]
    assert graph.target.tolist() == [1, 2, 0]
    assert graph.relation.tolist() == [0, 1, 1]
    assert list(graph.node_names) == ["c", "a b", "d", "e"]
    assert [each.name for each in graph.relations] == ["first", "second", "third"]


def test_some_splits_or_one_file(folder) -> None:
    assert RelationalGraph.read(folder, splits=("test", "train")).source.tolist() == [2, 0, 1]
    alone = RelationalGraph.read(folder / "test2id.txt", format="open_ke")
    assert (alone.num_edges, alone.num_nodes) == (1, 4)


def test_without_names(folder) -> None:
    (folder / "entity2id.txt").unlink()
    (folder / "relation2id.txt").unlink()
    graph = RelationalGraph.read(folder)
    assert (graph.num_nodes, graph.num_relations, graph.node_names) == (3, 2, None)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train2id.txt", "3\n0 1 0\n", r"train2id\.txt, line 1: promises 3 triples, but 1 follow"),
        (
            "train2id.txt",
            "0 1 0\n",
            "line 1: expected the number of lines that follow, got '0 1 0'",
        ),
        (
            "train2id.txt",
            "1\n0 1\n",
            r"line 2: expected 3 fields \(source target relation\), got 2",
        ),
        ("entity2id.txt", "4\na\t9\n", "line 2: expected a name and a number below 4"),
        ("entity2id.txt", "4\na\t1\nb\t1\n", "line 3: expected a name and a number below 4"),
        ("entity2id.txt", "4\na\t0\n", "number 1 has no name"),
        ("entity2id.txt", f"{10**17}\na\t0\n", "number 1 has no name"),
        ("entity2id.txt", "9" * 5000, "line 1: expected the number of lines that follow, got '99"),
        ("entity2id.txt", "\u0663\n", "line 1: expected the number of lines that follow, got"),
    ],
)
def test_what_is_wrong_is_named(folder, name, text, message) -> None:
    (folder / name).write_text(text)
    with pytest.raises(GraphFileError, match=message):
        RelationalGraph.read(folder)


def test_a_wrong_count_is_passed_over_where_asked(folder) -> None:
    (folder / "train2id.txt").write_text("3\n0 1 0\n")
    assert RelationalGraph.read(folder, strict=False).num_edges == 2


def test_a_folder_without_the_split(folder) -> None:
    with pytest.raises(GraphFileError, match=r"expected one of valid2id\.txt in it, found none"):
        RelationalGraph.read(folder, splits=("valid",))
