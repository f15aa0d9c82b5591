"""Graphs that are saved, and opened without being read."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import shorthaul as sh
from shorthaul.errors import GraphError, GraphFileError, ShorthaulError
from shorthaul.graphs import NeighborSampler, RelationalGraph, saved_columns
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.tensors import UnifiedTensor

INDEXES = ("relation", "target", "source", "pairs_source", "pairs_target")


def some_graph(edges: int = 500) -> RelationalGraph:
    generator = torch.Generator().manual_seed(1)
    source, target = torch.randint(0, 60, (2, edges), generator=generator)
    relation = torch.randint(0, 4, (edges,), generator=generator)
    names = [f"node é {number}" for number in range(70)]
    return RelationalGraph.from_edges(
        source, target, relation, num_nodes=70, num_relations=6, node_names=names
    )


def get_index(graph: RelationalGraph, name: str):
    return graph.pairs(name[6:]) if name.startswith("pairs") else getattr(graph, f"by_{name}")()


def require_same(one: RelationalGraph, other: RelationalGraph) -> None:
    assert (one.node_types, one.nodes_per_type) == (other.node_types, other.nodes_per_type)
    assert one.relations == other.relations
    for name in ("source", "target", "relation"):
        assert torch.equal(as_plain(getattr(one, name)), as_plain(getattr(other, name)))
    for name in INDEXES:
        for this, that in zip(
            vars(get_index(one, name)).values(), vars(get_index(other, name)).values(), strict=True
        ):
            assert torch.equal(as_plain(this), as_plain(that))


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("indexes", [None, (), INDEXES])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_graph_comes_back(tmp_path, in_memory, indexes, dtype) -> None:
    graph = some_graph()
    graph = RelationalGraph.from_edges(
        graph.source,
        graph.target,
        graph.relation,
        node_names=graph.node_names,
        num_relations=6,
        index_dtype=dtype,
    )
    graph.save(tmp_path / "graph", indexes)
    opened = RelationalGraph.open(tmp_path / "graph", in_memory=in_memory)
    assert isinstance(opened.source, UnifiedTensor) is not in_memory
    assert opened.index_dtype is dtype
    assert list(opened.node_names) == list(graph.node_names)
    assert opened.node_names.index("node é 7") == 7
    require_same(opened, graph)


def test_opening_reads_no_edges(tmp_path) -> None:
    graph = some_graph(200_000)
    graph.save(tmp_path, INDEXES)
    with sh.meter() as meter:
        opened = RelationalGraph.open(tmp_path)
        index = opened.by_target()
        assert index.sources.shape == (200_000,)
        assert opened.num_edges == 200_000
    assert meter.read_bytes == 0
    with sh.meter() as meter:
        pointers = index.pointers[torch.tensor([3, 4])]
        heard = as_plain(index.sources[int(pointers[0]) : int(pointers[1])])
    expected = graph.by_target()
    start, stop = expected.pointers[3:5].tolist()
    assert torch.equal(heard, expected.sources[start:stop])
    assert 0 < meter.read_bytes < 100_000


def test_a_sampler_draws_the_same_from_disk(tmp_path) -> None:
    graph = some_graph()
    graph.save(tmp_path)
    opened = RelationalGraph.open(tmp_path)
    seeds = torch.tensor([5, 17, 30])
    one, other = (NeighborSampler(each, [4, 3], seed=7).sample(seeds) for each in (graph, opened))
    for this, that in zip(one.blocks, other.blocks, strict=True):
        assert torch.equal(this.source_nodes, that.source_nodes)
        assert torch.equal(this.pointers, that.pointers)
        assert torch.equal(this.sources, that.sources)


@pytest.mark.parametrize("edges", [0, 1])
def test_small_and_empty_graphs(tmp_path, edges) -> None:
    graph = RelationalGraph.from_edges([0] * edges, [1] * edges, num_nodes=3)
    graph.save(tmp_path, INDEXES)
    require_same(RelationalGraph.open(tmp_path), graph)
    nothing = RelationalGraph.from_edges([], [], [], num_relations=0)
    nothing.save(tmp_path / "nothing", INDEXES)
    require_same(RelationalGraph.open(tmp_path / "nothing"), nothing)


def test_types_are_kept(tmp_path) -> None:
    graph = RelationalGraph.from_typed_edges(
        {("author", "schreibt für", "paper"): torch.tensor([[0, 1], [2, 2]])}
    )
    graph.save(tmp_path)
    require_same(RelationalGraph.open(tmp_path), graph)


def test_an_opened_graph_is_pickled_copied_and_saved_elsewhere(tmp_path) -> None:
    graph = some_graph()
    graph.save(tmp_path / "one")
    opened = RelationalGraph.open(tmp_path / "one")
    require_same(pickle.loads(pickle.dumps(opened)), graph)
    opened.save(tmp_path / "two")
    require_same(RelationalGraph.open(tmp_path / "two"), graph)
    require_same(opened.with_inverses(), graph.with_inverses())
    with pytest.raises(GraphError, match="so it cannot be saved there"):
        opened.save(tmp_path / "one")
    RelationalGraph.open(tmp_path / "one", in_memory=True).save(tmp_path / "one")


def test_an_index_that_does_not_exist(tmp_path) -> None:
    with pytest.raises(GraphError, match="there is no index 'edges' to save; there are relation"):
        some_graph().save(tmp_path, ["edges"])


def test_a_folder_without_a_graph(tmp_path) -> None:
    with pytest.raises(GraphFileError, match=r"graph\.json: is missing: no graph was saved here"):
        RelationalGraph.open(tmp_path)


def test_what_was_not_saved_to_the_end_is_no_graph(tmp_path) -> None:
    some_graph().save(tmp_path)
    (tmp_path / "relation.npy").unlink()
    (tmp_path / "relation.npy").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError, match=r"relation\.npy"):
        some_graph().save(tmp_path)
    with pytest.raises(GraphFileError, match="or saving did not finish"):
        RelationalGraph.open(tmp_path)


def test_a_part_that_is_gone(tmp_path) -> None:
    some_graph().save(tmp_path)
    (tmp_path / "source.npy").unlink()
    with pytest.raises(ShorthaulError, match=r"source\.npy"):
        RelationalGraph.open(tmp_path)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("format", 2, "expected format 1, got 2"),
        ("dtype", "float32", "its `dtype` cannot be used"),
        ("relations", [["a", "b"]], "its `relations` cannot be used"),
        ("nodes_per_type", [1, 2], "its `nodes_per_type` cannot be used"),
        ("nodes_per_type", [-1], "its `nodes_per_type` cannot be used"),
        ("num_edges", "many", "its `num_edges` cannot be used"),
        ("indexes", ["other"], "its `indexes` cannot be used"),
        ("num_edges", 3, r"source\.npy: expected 3 numbers, as graph\.json says, got 500"),
        ("nodes_per_type", [7], r"expected 8 numbers"),
        ("dtype", "int64", r"expected a vector of torch\.int64, got torch\.int32"),
    ],
)
def test_a_description_that_does_not_fit(tmp_path, entry, value, message) -> None:
    some_graph().save(tmp_path)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    with pytest.raises(GraphFileError, match=message):
        RelationalGraph.open(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_description_that_is_none(tmp_path, text) -> None:
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(GraphFileError, match=r"graph\.json"):
        RelationalGraph.open(tmp_path)


def test_files_are_plain_npy(tmp_path) -> None:
    graph = some_graph()
    graph.save(tmp_path, ["target"])
    found = np.load(tmp_path / "by_target.sources.npy", allow_pickle=False)
    assert found.tolist() == graph.by_target().sources.tolist()


def test_a_single_edge_that_is_a_column_of_a_table_is_saved(tmp_path: Path) -> None:
    source, target, relation = torch.tensor([[0, 1, 0]], dtype=torch.int32).unbind(1)
    RelationalGraph.from_edges(source, target, relation).save(tmp_path / "graph")
    opened = RelationalGraph.open(tmp_path / "graph")
    assert (as_plain(opened.source).tolist(), as_plain(opened.target).tolist()) == ([0], [1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_mapped_graph_is_sampled_as_in_memory(tmp_path, dtype, monkeypatch) -> None:
    monkeypatch.setattr(saved_columns, "_LOOKED_AT_NUMBERS", 13)
    edges = torch.randint(0, 70, (2, 900), generator=torch.Generator().manual_seed(0))
    graph = RelationalGraph.from_edges(*edges, num_nodes=70, index_dtype=dtype)
    graph.save(tmp_path, INDEXES)
    opened = RelationalGraph.open(tmp_path, mapped=True)
    require_same(opened, graph)
    assert not isinstance(opened.by_target().sources, UnifiedTensor)
    seeds = torch.arange(20)
    one, other = (NeighborSampler(each, [5, 3], seed=1).sample(seeds) for each in (graph, opened))
    assert torch.equal(one.input_nodes, other.input_nodes)


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("by_target.sources", 100, 70, r"number 100 is 70, but there are 70 nodes"),
        ("by_target.sources", 3, -1, r"number 3 is -1"),
        ("by_target.pointers", 26, 1, r"numbers 25 and 26 do not ascend"),
        ("by_target.pointers", 70, 499, r"numbers 69 and 70 do not ascend"),
        ("by_target.pointers", 0, 1, r"number 0 must be 0 and is 1"),
        ("by_target.edges", 499, 500, r"number 499 is 500, but there are 500 edges"),
    ],
)
def test_a_damaged_graph_is_not_mapped(tmp_path, monkeypatch, name, at, value, words) -> None:
    monkeypatch.setattr(saved_columns, "_LOOKED_AT_NUMBERS", 13)  # 26 is the first of a part
    some_graph().save(tmp_path)
    column = np.load(tmp_path / f"{name}.npy", mmap_mode="r+")
    column[at] = value
    column.flush()
    with pytest.raises(GraphFileError, match=words):
        RelationalGraph.open(tmp_path, mapped=True)


def test_a_graph_is_not_both_read_and_mapped(tmp_path) -> None:
    some_graph().save(tmp_path)
    with pytest.raises(GraphError, match="give `in_memory` or `mapped`"):
        RelationalGraph.open(tmp_path, in_memory=True, mapped=True)
