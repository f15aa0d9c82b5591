"""PyG's HGT through its own weights, with edge types in any order."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import HGTConv

pyg = pytest.importorskip("torch_geometric.nn")

NODES = {"a": 9, "b": 14, "c": 4}
TYPES = (list(NODES), [("a", "x", "b"), ("b", "y", "a"), ("b", "z", "b"), ("c", "w", "b")])


def _inputs():
    generator = torch.Generator().manual_seed(5)
    x = {
        name: torch.randn(count, width, dtype=torch.float64, generator=generator)
        for (name, count), width in zip(NODES.items(), (6, 8, 5), strict=True)
    }
    edges = {
        each: torch.stack(
            [torch.randint(NODES[each[end]], (30,), generator=generator) for end in (0, 2)]
        )
        for each in TYPES[1]
    }
    return x, edges


def _pair(heads):
    widths = {"a": 6, "b": 8, "c": 5}
    ours, theirs = HGTConv(widths, 8, TYPES, heads).double(), pyg.HGTConv(widths, 8, TYPES, heads)
    theirs = theirs.double()
    with torch.no_grad():
        for number, parameter in enumerate(theirs.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def _loss(out):
    return sum((value * (number + 1)).square().sum() for number, value in enumerate(out.values()))


@pytest.mark.parametrize(("heads", "backend"), [(1, "reference"), (4, "reference"), (2, "auto")])
def test_same_as_pyg(heads, backend):
    ours, theirs = _pair(heads)
    ours.function.backend = backend
    x, edges = _inputs()
    out, expected = ours(x, edges), theirs(x, edges)
    assert set(out) == set(expected) == {"a", "b"}
    for name in out:
        torch.testing.assert_close(out[name], expected[name])
    _loss(out).backward()
    _loss({name: expected[name] for name in out}).backward()
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        other = wanted[name].grad
        if parameter.grad is None or other is None:
            continue
        torch.testing.assert_close(parameter.grad, other, msg=lambda m, name=name: f"{name}: {m}")


def test_the_order_of_edge_types_does_not_matter():
    ours, _ = _pair(2)
    ours.function.backend = "reference"
    x, edges = _inputs()
    turned = dict(reversed(edges.items()))
    for name, value in ours(x, edges).items():
        torch.testing.assert_close(ours(x, turned)[name], value)


def test_a_relation_without_edges_may_be_left_out():
    ours, _ = _pair(2)
    ours.function.backend = "reference"
    x, edges = _inputs()
    del edges["c", "w", "b"]
    empty = {**edges, ("c", "w", "b"): torch.empty(2, 0, dtype=torch.int64)}
    for name, value in ours(x, edges).items():
        assert torch.equal(ours(x, empty)[name], value)


def test_a_graph_of_types_in_another_order():
    ours, _ = _pair(2)
    ours.function.backend = "reference"
    x, edges = _inputs()
    turned = {name: NODES[name] for name in "cba"}
    graph = RelationalGraph.from_typed_edges(edges, turned)
    for name, value in ours(x, edges).items():
        torch.testing.assert_close(ours(x, graph)[name], value)
    with pytest.raises(LayerArgumentError, match=r"x_dict\['b'\] has 2 rows"):
        ours({**x, "b": x["b"][:2]}, graph)


def test_hetero_data_holds_features_and_edges():
    from torch_geometric.data import HeteroData

    ours, _ = _pair(2)
    ours.function.backend = "reference"
    x, edges = _inputs()
    data = HeteroData()
    for name, value in x.items():
        data[name].x = value
    for relation, value in edges.items():
        data[relation].edge_index = value
    for name, value in ours(x, edges).items():
        assert torch.equal(ours(data)[name], value)
    with pytest.raises(LayerArgumentError, match="dict was given without edges"):
        ours(x)


def test_bad_types_are_named():
    ours, _ = _pair(1)
    x, edges = _inputs()
    with pytest.raises(LayerArgumentError, match="`c`"):
        ours({name: x[name] for name in "ab"}, edges)
    with pytest.raises(LayerArgumentError, match="d are unknown"):
        ours({**x, "d": x["a"]}, edges)
    with pytest.raises(LayerArgumentError, match=r"relation .*'q'"):
        ours(x, {("a", "q", "b"): edges["a", "x", "b"]})
    with pytest.raises(LayerArgumentError, match="heads"):
        HGTConv(8, 8, TYPES, heads=3)
    with pytest.raises(LayerArgumentError, match="no width for c"):
        HGTConv({"a": 1, "b": 1}, 8, TYPES)
