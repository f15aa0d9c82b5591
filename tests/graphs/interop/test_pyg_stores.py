import warnings
from typing import Any

import pytest
import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs import RelationalGraph
from shorthaul.tensors import unified
from tests.graphs.peer_environment import run_with_peers
from tests.graphs.sampled_graphs import random_graph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG's own, about torch
    pytest.importorskip("torch_geometric", reason="PyG is not installed")
    from shorthaul.graphs.interop.pyg_stores import FeatureStore, GraphStore


WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture
def typed() -> RelationalGraph:
    generator = torch.Generator().manual_seed(0)
    edges = {
        WRITES: torch.stack(
            [
                torch.randint(6, (40,), generator=generator),
                torch.randint(9, (40,), generator=generator),
            ]
        ),
        CITES: torch.randint(9, (2, 50), generator=generator),
    }
    return RelationalGraph.from_typed_edges(edges, {"author": 6, "paper": 9})


def get(store: Any, group: Any, name: str, index: Any) -> Any:
    return store.get_tensor(group_name=group, attr_name=name, index=index)


@pytest.mark.parametrize("wrap", [lambda x: x, unified])
def test_features_that_do_not_say_whose_they_are(typed: RelationalGraph, wrap: Any) -> None:
    several = random_graph(relations=3)
    for graph, told in (
        (typed, "2 node types and 2 relations"),
        (several, "1 node types and 3 relations"),
    ):
        kind = graph.node_types[0]
        with pytest.raises(SamplingError) as raised:
            FeatureStore(graph, {"x": wrap(torch.zeros(graph.num_nodes, 2))})
        assert "features['x'] must map names to tables, got" in str(raised.value)
        assert told in str(raised.value)
        assert f"Pass {{'{kind}': {{'x': table}}}}; node types are `{kind}`" in str(raised.value)
    store = FeatureStore(several, {"node": {"x": wrap(torch.ones(60, 2))}})
    assert get(store, "node", "x", 3).tolist() == [1, 1]


def test_features_of_another_form() -> None:
    graph = random_graph()
    with pytest.raises(SamplingError, match="features must be a mapping, got Tensor"):
        FeatureStore(graph, torch.zeros(60, 2))  # type: ignore[arg-type]
    with pytest.raises(SamplingError, match="`node` must be a table of rows, got a mapping"):
        FeatureStore(graph, {"node": {"x": torch.zeros(60, 2)}})


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([5, 0, 5]),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.arange(9) > 4,
        slice(2, 8, 3),
        7,
        None,
    ],
)
@pytest.mark.parametrize("wrap", [lambda x: x, unified, lambda x: x.numpy()])
def test_rows_come_by_every_kind_of_index(typed: RelationalGraph, index: Any, wrap: Any) -> None:
    x = torch.randn(9, 4)
    store = FeatureStore(typed, {"paper": {"x": wrap(x)}})
    expected = x if index is None else x[index]
    assert torch.equal(get(store, "paper", "x", index), expected)
    assert store.get_tensor_size(group_name="paper", attr_name="x") == (9, 4)


def test_the_features_of_edges_go_by_edge_ids_and_are_not_listed(typed: RelationalGraph) -> None:
    weight = torch.randn(40, 2)
    store = FeatureStore(typed, {"paper": {"x": torch.randn(9, 4)}, WRITES: {"weight": weight}})
    listed = {(each.group_name, each.attr_name) for each in store.get_all_tensor_attrs()}
    # An author has no features, but PyG must hear of the type.
    assert listed == {("paper", "x"), ("author", "n_id")}
    assert torch.equal(get(store, WRITES, "weight", torch.tensor([39, 0])), weight[[39, 0]])
    assert get(store, "author", "n_id", torch.tensor([4, 2])).tolist() == [4, 2]
    assert store.get_tensor_size(group_name="author", attr_name="n_id") == (6,)


def test_a_graph_of_one_type_is_homogeneous() -> None:
    graph = random_graph(8, 30)
    x, weight = torch.randn(8, 3), torch.randn(30)
    store = FeatureStore(graph, {"x": x}, {"weight": weight})
    (attribute,) = store.get_all_tensor_attrs()
    assert (attribute.group_name, attribute.attr_name) == (None, "x")
    assert torch.equal(get(store, None, "x", torch.tensor([2])), x[[2]])
    assert torch.equal(get(store, graph.relations[0], "weight", None), weight)


def test_tables_are_put_changed_and_removed(typed: RelationalGraph) -> None:
    store = FeatureStore(typed)
    x = torch.zeros(9, 2)
    assert store.put_tensor(x, group_name="paper", attr_name="x", index=None)
    assert store.put_tensor(torch.ones(1, 2), group_name="paper", attr_name="x", index=[3])
    assert get(store, "paper", "x", 3).tolist() == [1, 1]
    assert store.remove_tensor(group_name="paper", attr_name="x", index=None)
    with pytest.raises(SamplingError, match="there is no `x` of paper; there is nothing"):
        get(store, "paper", "x", 3)


def test_wrong_tables_are_refused(typed: RelationalGraph) -> None:
    with pytest.raises(SamplingError, match=r"`x` of paper must have a row for each of 9"):
        FeatureStore(typed, {"paper": {"x": torch.ones(8, 2)}})
    with pytest.raises(SamplingError, match="name the edge type in `features`"):
        FeatureStore(typed, {}, {"weight": torch.ones(40)})
    with pytest.raises(ValueError, match="there is no node type 'venue'"):
        FeatureStore(typed, {"venue": {"x": torch.ones(8, 2)}})


def test_edges_come_by_target_with_their_ids(typed: RelationalGraph) -> None:
    store = GraphStore(typed)
    sources, pointers, edge_ids = store.csc()
    given, _, _ = store.coo()
    assert set(sources) == {WRITES, CITES}
    for relation, count in ((WRITES, 40), (CITES, 50)):
        edge_index = torch.stack(store.get_edge_index(edge_type=relation, layout="coo"))
        assert torch.equal(given[relation], edge_index[0])
        order = edge_ids[relation]
        assert sorted(order.tolist()) == list(range(count))
        assert torch.equal(sources[relation], edge_index[0][order])
        targets = torch.repeat_interleave(pointers[relation].diff())
        assert torch.equal(targets, edge_index[1][order])


def test_a_store_of_edges_does_not_change(typed: RelationalGraph) -> None:
    store = GraphStore(typed)
    with pytest.raises(SamplingError, match="a graph does not change"):
        store.put_edge_index((torch.ones(1), torch.ones(1)), edge_type=CITES, layout="coo")
    with pytest.raises(KeyError):
        store.get_edge_index(edge_type=("a", "b", "c"), layout="coo")


def test_edge_features_need_edge_ids(typed: RelationalGraph) -> None:
    from torch_geometric.data import HeteroData

    store = FeatureStore(typed, {WRITES: {"weight": torch.arange(40.0)}})
    data = HeteroData()
    data[WRITES].e_id = torch.tensor([7, 3])
    assert store.add_edge_features(data)[WRITES].weight.tolist() == [7, 3]
    with pytest.raises(SamplingError, match="does not know the ids of its edges"):
        store.add_edge_features(HeteroData({WRITES: {}}))


def test_pyg_samples_typed_and_homogeneous_graphs_unchanged() -> None:
    printed = run_with_peers(
        """
        import torch
        from torch_geometric.loader import NeighborLoader
        from shorthaul.graphs import RelationalGraph
        from shorthaul.graphs.interop.pyg_stores import FeatureStore, GraphStore
        from shorthaul.tensors import unified

        torch.manual_seed(0)
        writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
        edges = {
            writes: torch.stack([torch.randint(20, (200,)), torch.randint(50, (200,))]),
            cites: torch.randint(50, (2, 300)),
        }
        graph = RelationalGraph.from_typed_edges(edges, {"author": 20, "paper": 50})
        x = torch.randn(50, 4)
        weight = torch.randn(300)
        features = FeatureStore(graph, {"paper": {"x": unified(x)}, cites: {"weight": weight}})
        loader = NeighborLoader(
            (features, GraphStore(graph)), num_neighbors=[3, 3], batch_size=10,
            input_nodes=("paper", torch.arange(50)), transform=features.add_edge_features,
        )
        for data in loader:
            assert torch.equal(data["paper"].x, x[data["paper"].n_id])
            for relation in (writes, cites):
                if "e_id" not in data[relation]:
                    continue
                source, target = data[relation].edge_index
                chosen = edges[relation][:, data[relation].e_id]
                assert torch.equal(data[relation[0]].n_id[source], chosen[0])
                assert torch.equal(data[relation[2]].n_id[target], chosen[1])
            assert torch.equal(data[cites].weight, weight[data[cites].e_id])
        print(len(loader))


        torch.manual_seed(0)
        edge_index = torch.randint(60, (2, 500))
        graph = RelationalGraph.from_edge_index(edge_index, num_nodes=60)
        x, weight = torch.randn(60, 4), torch.randn(500, 2)
        features = FeatureStore(graph, {"x": x}, {"weight": weight})
        loader = NeighborLoader(
            (features, GraphStore(graph)), num_neighbors=[4, 2], batch_size=20,
            input_nodes=torch.arange(60), transform=features.add_edge_features,
        )
        for data in loader:
            assert torch.equal(data.x, x[data.n_id])
            assert torch.equal(data.n_id[data.edge_index], edge_index[:, data.e_id])
            assert torch.equal(data.weight, weight[data.e_id])
        print(len(loader))
        """,
        "torch_sparse",
    )
    assert printed.split() == ["5", "3"]
