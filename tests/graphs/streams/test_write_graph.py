"""Graphs written from chunks of edges, and indexed where they lie."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import shorthaul as sh
from shorthaul.errors import EdgeRangeError, GraphError, GraphFileError
from shorthaul.graphs import RelationalGraph, add_indexes, write_graph
from shorthaul.graphs.streams import write_graph as module

EDGES = 6_000


def some_edges(relations: int = 4) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    source, target = torch.randint(0, 700, (2, EDGES), generator=generator)
    return source, target, torch.randint(0, relations, (EDGES,), generator=generator)


def in_chunks(columns: tuple[torch.Tensor, ...], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    for start in range(0, len(columns[0]), size):
        yield tuple(each[start : start + size] for each in columns)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("relations", [1, 4])
@pytest.mark.parametrize("chunk", [7, 1000, EDGES])
def test_the_files_are_those_that_save_writes(
    tmp_path: Path, dtype: torch.dtype, relations: int, chunk: int
) -> None:
    columns = some_edges(relations)
    indexes = ("relation", "target", "source")
    graph = RelationalGraph.from_edges(
        *columns, num_nodes=700, num_relations=relations, index_dtype=dtype
    )
    graph.save(tmp_path / "saved", indexes)
    write_graph(
        tmp_path / "written",
        in_chunks(columns, chunk),
        num_nodes=700,
        relations=[each.name for each in graph.relations],
        index_dtype=dtype,
        indexes=indexes,
        memory="64KiB",
        progress=False,
    )
    names = {each.name for each in (tmp_path / "saved").iterdir()}
    assert names == {each.name for each in (tmp_path / "written").iterdir()}
    for name in names - {"graph.json"}:
        one, other = ((tmp_path / each / name).read_bytes() for each in ("saved", "written"))
        assert one == other, name
    one, other = (
        json.loads((tmp_path / each / "graph.json").read_text()) for each in ("saved", "written")
    )
    assert one == other


def test_typed_graphs_and_no_edges(tmp_path: Path) -> None:
    types = {"author": 2, "paper": 3}
    relations = [("author", "writes", "paper"), ("paper", "cites", "paper")]
    options = {"nodes_per_type": types, "relations": relations, "progress": False}
    write_graph(tmp_path, [([0, 1, 2], [2, 4, 3], [0, 0, 1])], **options)
    graph = RelationalGraph.open(tmp_path, in_memory=True)
    assert graph.node_types == ("author", "paper")
    assert graph.by_target().sources.tolist() == [0, 2, 1]
    with pytest.raises(
        GraphError, match=r"edge 3 is a `author writes paper`, but its source is node 2"
    ):
        write_graph(tmp_path, [([0, 1, 2], [2, 4, 3], [0, 0, 1]), ([2], [3], [0])], **options)
    write_graph(tmp_path / "none", [], num_nodes=4, progress=False)
    empty = RelationalGraph.open(tmp_path / "none", in_memory=True)
    assert empty.by_target().pointers.tolist() == [0] * 5


def test_an_edge_out_of_range_is_named_by_its_number(tmp_path: Path) -> None:
    chunks = [([0, 1], [1, 0]), ([1, 0, 1], [0, 5, 1])]
    with pytest.raises(EdgeRangeError, match=r"the target of edge 3 is 5, but there are 2 nodes"):
        write_graph(tmp_path, chunks, num_nodes=2, progress=False)
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(EdgeRangeError, match=r"the relation of edge 1 is -1"):
        write_graph(tmp_path, [([0, 1], [1, 0], [0, -1])], num_nodes=2, progress=False)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    refused = {
        "how many nodes there are": {},
        "no index 'pairs_target' to make out of memory": {
            "num_nodes": 2,
            "indexes": ["pairs_target"],
        },
        "memory must be at least 64 KiB": {"num_nodes": 2, "memory": 100},
    }
    for words, options in refused.items():
        with pytest.raises(GraphError, match=words):
            write_graph(tmp_path, [([0], [1])], progress=False, **options)
    with pytest.raises(GraphError, match=r"got tuple after 1 edges"):
        write_graph(tmp_path, [([0], [1]), ([0],)], num_nodes=2, progress=False)
    with pytest.raises(GraphError, match="every edge needs a value in each"):
        write_graph(tmp_path, [([0], [1, 0])], num_nodes=2, progress=False)


def test_more_edges_than_int32_counts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INT32_LIMIT", 3)
    with pytest.raises(GraphError, match=r"index_dtype=torch\.int64"):
        write_graph(tmp_path, [([0, 0], [1, 1])] * 2, num_nodes=2, progress=False)
    write_graph(
        tmp_path, [([0, 0], [1, 1])] * 2, num_nodes=2, index_dtype=torch.int64, progress=False
    )
    assert RelationalGraph.open(tmp_path).num_edges == 4


def test_indexes_are_added_where_they_are_missing(tmp_path: Path) -> None:
    graph = RelationalGraph.from_edges(*some_edges(), num_nodes=700)
    graph.save(tmp_path, ["pairs_target"])
    before = (tmp_path / "pairs_target.nodes.npy").stat().st_mtime_ns
    add_indexes(tmp_path, ["source", "target"], memory="64KiB", progress=False)
    described = json.loads((tmp_path / "graph.json").read_text())
    assert described["indexes"] == ["target", "source", "pairs_target"]
    assert (tmp_path / "pairs_target.nodes.npy").stat().st_mtime_ns == before
    opened = RelationalGraph.open(tmp_path, in_memory=True)  # holds them to their checksums
    assert set(opened.indexes) == {"target", "source", "pairs_target"}
    for name, values in vars(graph.by_source()).items():
        assert torch.equal(getattr(opened.by_source(), name), values)
    with sh.meter() as meter:
        add_indexes(tmp_path, ["source"], progress=False)
    assert meter.read_bytes == 0  # it is there


def test_a_run_that_was_stopped_leaves_no_half_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RelationalGraph.from_edges(*some_edges(), num_nodes=700).save(tmp_path, [])
    files = {each.name for each in tmp_path.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(module, "sort_to_files", _stopped(module.sort_to_files))
        with pytest.raises(KeyboardInterrupt):
            add_indexes(tmp_path, ["target", "source"], progress=False)
    assert json.loads((tmp_path / "graph.json").read_text())["indexes"] == ["target"]
    own = {each.name for each in tmp_path.iterdir()} - files
    assert own == {
        f"by_target.{name}.npy" for name in ("pointers", "sources", "relations", "edges")
    }
    add_indexes(tmp_path, ["target", "source"], progress=False)
    assert set(RelationalGraph.open(tmp_path, in_memory=True).indexes) == {"target", "source"}


def _stopped(sort):
    def run(graph, index, *rest, **options):
        if index == "source":
            raise KeyboardInterrupt
        return sort(graph, index, *rest, **options)

    return run


def test_a_damaged_graph_is_refused_with_the_edge(tmp_path: Path) -> None:
    RelationalGraph.from_edges(*some_edges(), num_nodes=700).save(tmp_path, [])
    target = np.load(tmp_path / "target.npy", mmap_mode="r+")
    target[1234] = 700
    target.flush()
    with pytest.raises(GraphFileError, match=r"target.npy: number 1,234 is 700, but there are 700"):
        add_indexes(tmp_path, progress=False)
    assert not (tmp_path / "by_target.sources.npy").exists()


def test_bytes_read_and_written_are_few(tmp_path: Path) -> None:
    """Edges are read twice and keys once more; what is dealt out is read once and written twice."""
    write_graph(tmp_path, in_chunks(some_edges(), 1000), num_nodes=700, num_relations=4, indexes=[])
    with sh.meter() as meter:
        add_indexes(tmp_path, memory="64KiB", progress=False)
    column = EDGES * 4
    read = (2 + 3 + 4) * column  # keys and relations counted; three dealt out; four sorted
    written = (4 + 3) * column + 701 * 4 + 4 * 4096
    chunks = -(-EDGES // 819)
    assert read <= meter.read_bytes <= read + 5 * chunks * 2 * 512
    assert meter.written_bytes == written
