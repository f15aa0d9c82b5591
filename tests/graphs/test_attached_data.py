"""Data of nodes and edges: attached, kept, saved, opened."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import GraphError, GraphFileError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.attached_data import count_within_relation, gather_edge_rows, join_relations
from shorthaul.tensors import UnifiedTensor
from shorthaul.tensors.tables.table import HostTable

RATES, CITES = ("user", "rates", "film"), ("film", "cites", "film")


def typed_graph() -> RelationalGraph:
    edges = {RATES: torch.tensor([[0, 1, 1], [0, 0, 1]]), CITES: torch.tensor([[1, 0], [0, 2]])}
    return RelationalGraph.from_typed_edges(edges, {"user": 2, "film": 3})


def described() -> RelationalGraph:
    return typed_graph().with_data(
        nodes={"time": {"film": [5, 6, 7]}},
        edges={
            "weight": [1.0, 2.0, 3.0, 4.0, 5.0],
            "stars": {RATES: torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])},
        },
    )


def test_nodes_of_types_that_are_left_out_have_always_been_there() -> None:
    assert described().node_data["time"].tolist() == [-(2**63)] * 2 + [5, 6, 7]


def test_the_other_graph_has_the_same_edges_and_indexes() -> None:
    graph = typed_graph()
    index = graph.by_target()
    more = graph.with_data(edges={"weight": torch.ones(5)})
    assert more.by_target() is index
    assert more.source.data_ptr() == graph.source.data_ptr()
    assert not graph.edge_data
    assert more.with_data(edges={"time": [0] * 5}).edge_data.keys() == {"weight", "time"}


def test_a_change_in_place_is_still_noticed() -> None:
    graph = RelationalGraph.from_edges(*torch.zeros(2, 3, dtype=torch.int32))
    more = graph.with_data(edges={"weight": [1.0] * 3})
    graph.source[0] = 0
    with pytest.raises(sh.errors.GraphChangedError):
        more.by_relation()


@pytest.mark.parametrize("in_memory", [True, False])
def test_data_are_saved_and_opened_with_the_graph(tmp_path: Path, in_memory: bool) -> None:
    graph = described()
    graph.save(tmp_path)
    opened = RelationalGraph.open(tmp_path, in_memory=in_memory)
    for one, other in (
        (opened.node_data["time"], graph.node_data["time"]),
        (opened.edge_data["weight"], graph.edge_data["weight"]),
        (
            opened.edge_data["stars"][graph.relations[0]],
            graph.edge_data["stars"][graph.relations[0]],
        ),
    ):
        assert isinstance(one, UnifiedTensor) is not in_memory
        assert one.dtype is other.dtype
        assert torch.equal(one[:].cpu(), other[:])


def test_damaged_data_are_noticed_when_they_are_read_whole(tmp_path: Path) -> None:
    described().save(tmp_path)
    path = tmp_path / "edge_data.weight.npy"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    RelationalGraph.open(tmp_path)
    with pytest.raises(GraphFileError, match=r"edge_data.weight.npy: its rows have the checksum"):
        RelationalGraph.open(tmp_path, in_memory=True)


def test_data_of_another_length_are_noticed(tmp_path: Path) -> None:
    described().save(tmp_path)
    sh.save_features(tmp_path / "edge_data.weight.npy", torch.ones(4))
    with pytest.raises(GraphFileError, match=r"expected 5 rows, as graph.json says, got \(4,\)"):
        RelationalGraph.open(tmp_path)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("edge_data.weight", torch.arange(5, dtype=torch.int32)),
        ("edge_data.weight", torch.ones(5, 1)),
        ("edge_data.stars.0", torch.ones(2, dtype=torch.int64)),
    ],
    ids=["dtype", "shape", "rows of a relation"],
)
def test_data_of_another_kind_are_noticed(
    tmp_path: Path, name: str, wrong: torch.Tensor, in_memory: bool
) -> None:
    """The same bytes may be other numbers: no checksum tells."""
    described().save(tmp_path)
    sh.save_features(tmp_path / f"{name}.npy", wrong)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"checksums": {}}))
    with pytest.raises(GraphFileError, match=rf"{name}.npy: expected torch.* as graph.json says"):
        RelationalGraph.open(tmp_path, in_memory=in_memory)


def test_a_graph_that_was_saved_without_kinds_is_opened(tmp_path: Path) -> None:
    described().save(tmp_path)
    path = tmp_path / "graph.json"
    held = json.loads(path.read_text())
    assert held.pop("kinds")["edge_data.weight"] == "torch.float32 [5]"
    path.write_text(json.dumps(held))
    assert RelationalGraph.open(tmp_path).edge_data.keys() == {"weight", "stars"}


@pytest.mark.parametrize("damage", ["[[0]]", "[{}]", "[" * 100_000])
def test_data_that_no_relation_has_are_an_error(tmp_path: Path, damage: str) -> None:
    described().save(tmp_path)
    path = tmp_path / "graph.json"
    held = json.loads(path.read_text())
    held["edge_data"]["stars"] = "here"
    path.write_text(json.dumps(held).replace('"here"', damage))
    with pytest.raises(GraphFileError):
        RelationalGraph.open(tmp_path)


def test_inverses_have_the_data_of_their_edges() -> None:
    both = described().with_inverses()
    weight, stars = both.edge_data["weight"], both.edge_data["stars"]
    assert isinstance(weight, torch.Tensor)
    assert weight.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0] * 2
    assert not isinstance(stars, torch.Tensor)
    assert [each.name for each in stars] == ["rates", "rates_reversed"]
    assert both.node_data["time"].shape == (5,)


def test_rows_of_relations_are_found_by_edge_ids() -> None:
    # Edges of relations lie mixed: edge 1 and 3 are of relation 1.
    graph = RelationalGraph.from_edges([0, 1, 2, 0], [1, 2, 0, 2], [0, 1, 0, 1]).with_data(
        edges={"x": {"1": torch.tensor([[10.0], [30.0]])}}
    )
    edges = torch.tensor([3, 0, 1, 3])
    stored = graph.edge_data["x"]
    assert not isinstance(stored, torch.Tensor)
    tables = {each: HostTable(rows) for each, rows in stored.items()}
    found = gather_edge_rows(graph, tables, edges, lambda: graph.relation[edges])
    assert not isinstance(found, torch.Tensor)
    ((places, rows),) = found.values()
    assert places.tolist() == [0, 2, 3]
    assert rows.flatten().tolist() == [30.0, 10.0, 30.0]


def test_places_in_a_relation_on_disk_read_two_edges_and_no_column(tmp_path: Path) -> None:
    count = 100_000
    ends = torch.arange(count) % 50
    edges = {("a", name, "a"): torch.stack([ends, ends.flip(0)]) for name in ("x", "y")}
    RelationalGraph.from_typed_edges(edges, {"a": 50}).save(tmp_path, ["relation", "target"])
    graph = RelationalGraph.open(tmp_path)
    graph.by_relation()
    with sh.meter() as meter:
        places = count_within_relation(graph, torch.tensor([count + 7, 2 * count - 1]), 1)
    assert places.tolist() == [7, count - 1]
    assert meter.read_bytes < 50_000


def test_numbers_of_some_relations_become_one_for_each_edge() -> None:
    graph = typed_graph()
    joined = join_relations(graph, {graph.relations[1]: torch.tensor([0.5, 0.25])}, 1)
    assert joined.tolist() == [1, 1, 1, 0.5, 0.25]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"edges": {"weight": [1.0]}}, r"a row for each of 5 edges, got shape \(1,\)"),
        ({"edges": {"weight": 3.0}}, r"a row for each of 5 edges, got shape \(\)"),
        ({"edges": {"a/b": [1.0] * 5}}, "'a/b' cannot name data of edges"),
        ({"edges": {"weight": {"likes": [1.0]}}}, "no single relation is called 'likes'"),
        ({"edges": [1.0]}, "`edges` must map names to tensors, got list"),
        ({"nodes": {"time": {"actor": [1]}}}, "names the type `actor`; there are `user`, `film`"),
        ({"nodes": {"x": {"film": torch.ones(3, 2)}}}, "must be a vector of whole numbers"),
        ({"nodes": {"time": ["now"]}}, "must be a tensor of rows"),
    ],
)
def test_what_does_not_fit_is_told(data: dict[str, Any], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        typed_graph().with_data(**data)
