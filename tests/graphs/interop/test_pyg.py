"""From and to PyG, the real one."""

import sys
import warnings

import pytest
import torch

from shorthaul.errors import EdgeRangeError, GraphError, MissingExtraError
from shorthaul.graphs import RelationalGraph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG scripts some of its classes, which torch calls old
    data_module = pytest.importorskip("torch_geometric.data", reason="PyG is not installed")
Data, HeteroData = data_module.Data, data_module.HeteroData


def test_data() -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=5)
    graph = RelationalGraph.from_pyg(data)
    assert (graph.num_nodes, graph.num_relations, graph.source.tolist()) == (5, 1, [0, 1])
    data.edge_type = torch.tensor([2, 0])
    graph = RelationalGraph.from_pyg(data, index_dtype=torch.int64)
    assert (graph.num_relations, graph.relation.tolist()) == (3, [2, 0])
    assert graph.index_dtype is torch.int64


def test_counts_come_from_features_or_else_from_edges_without_a_warning() -> None:
    edge_index = torch.tensor([[0, 1], [1, 2]])
    assert RelationalGraph.from_pyg(Data(edge_index=edge_index)).num_nodes == 3
    assert RelationalGraph.from_pyg(Data(edge_index=edge_index, x=torch.ones(7, 1))).num_nodes == 7
    with pytest.raises(EdgeRangeError, match="the target of edge 1 is 2"):
        RelationalGraph.from_pyg(Data(edge_index=edge_index, num_nodes=2))


def hetero() -> HeteroData:
    data = HeteroData()
    data["author"].x = torch.ones(2, 4)
    data["paper"].num_nodes = 3
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [2, 2, 0]])
    data["paper", "at", "venue"].edge_index = torch.tensor([[0], [6]])
    return data


def test_hetero_data() -> None:
    data = hetero()
    graph = RelationalGraph.from_pyg(data)
    assert graph.node_types == ("author", "paper", "venue")
    assert graph.nodes_per_type == (2, 3, 7)
    assert graph.source.tolist() == [0, 1, 1, 2]
    assert graph.target.tolist() == [4, 4, 2, 11]
    assert data.node_types == ["author", "paper"]  # looked at, not changed


def test_there_and_back() -> None:
    graph = RelationalGraph.from_pyg(hetero())
    back = graph.to_pyg()
    assert back["venue"].num_nodes == 7
    for relation in graph.relations:
        expected = hetero()[tuple(relation)].edge_index
        assert torch.equal(back[tuple(relation)].edge_index, expected)
    again = RelationalGraph.from_pyg(back)
    assert torch.equal(again.source, graph.source)
    assert again.relations == graph.relations
    plain = RelationalGraph.from_edges([0, 1], [2, 2], [1, 0], num_nodes=4)
    data = plain.to_pyg()
    assert data.edge_index.tolist() == [[0, 1], [2, 2]]
    assert (data.num_nodes, data.edge_type.tolist()) == (4, [1, 0])
    assert "edge_type" not in RelationalGraph.from_edges([0], [1]).to_pyg()


def test_relations_that_are_mixed_become_edges_by_relation() -> None:
    graph = RelationalGraph.from_edges(
        [0, 1, 0],
        [2, 0, 2],
        [1, 0, 1],
        relations=[("b", "of", "a"), ("a", "to", "c")],
        nodes_per_type={"a": 1, "b": 1, "c": 2},
    )
    data = graph.to_pyg()
    assert data["a", "to", "c"].edge_index.tolist() == [[0, 0], [0, 0]]
    assert data["b", "of", "a"].edge_index.tolist() == [[0], [0]]


def test_data_without_an_edge_index() -> None:
    with pytest.raises(GraphError, match=r"the data has no `edge_index`(.|\n)*adj_t"):
        RelationalGraph.from_pyg(Data(x=torch.ones(3, 1)))
    data = hetero()
    data["paper", "cites", "paper"].adj_t = torch.ones(3, 3)
    with pytest.raises(GraphError, match="relation `paper cites paper` has no `edge_index`"):
        RelationalGraph.from_pyg(data)


def test_without_pyg(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shorthaul\[pyg\]'"):
        RelationalGraph.from_edges([0], [1]).to_pyg()
