"""What an author's function is given: nodes, edges, weights and features, and what they refuse."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError, LayerLanguageError
from shorthaul.relational import NodeFeature, Weight, layer, linear
from shorthaul.relational.frontend.expressions import Recorder
from shorthaul.relational.frontend.symbols import (
    EdgeSymbol,
    GraphSymbol,
    NodeSymbol,
    WeightArgument,
)
from shorthaul.relational.ir.spaces import Space
from tests.relational.programs import sample_graph


@pytest.fixture
def recorder():
    recorder = Recorder("small", __file__)
    recorder.node_values["x"] = recorder.make.input("x", (4,), Space.NODE, "node")
    recorder.make.input("weight", (4, 2), Space.RELATION, "weight")
    return recorder


def test_targets_read_the_first_nodes(recorder):
    target = NodeSymbol(recorder, Space.TARGET)
    assert target.x._space is Space.TARGET
    assert "restrict x" in repr(target.x)


def test_ends_of_edges_read_along_a_way(recorder):
    edge = EdgeSymbol(recorder)
    assert "expand x {to=edge, way=source}" in repr(edge.source.x)
    assert (edge.source.rows(), NodeSymbol(recorder, Space.NODE).rows()) == (Space.EDGE, Space.NODE)


def test_a_slice_is_multiplied_without_being_spread(recorder):
    edge = EdgeSymbol(recorder)
    weight = WeightArgument(recorder, "weight")
    assert "linear expand, weight {transposed=False, way=relation}" in repr(
        edge.source.x @ weight[edge.relation]
    )
    assert weight[edge.relation].shape == weight.shape == (4, 2)
    assert weight[edge.relation].reshape(8).shape == weight.reshape(-1).shape == (8,)
    assert [part.shape for part in weight[edge.relation].split(1, 1)] == [(4, 1), (4, 1)]


def test_a_targets_value_meets_the_relation_of_its_edges(recorder):
    weight, target = WeightArgument(recorder, "weight"), NodeSymbol(recorder, Space.TARGET)
    (edge,) = target.incoming_edges()
    assert (target.x @ weight[edge.relation])._space is Space.EDGE


def test_a_loop_that_is_left_early_is_over(recorder):
    graph = GraphSymbol(recorder)
    for _ in graph.edges():
        break
    assert [each.rows() for each in graph.nodes()] == [Space.NODE]


def test_what_an_edge_is_cannot_be_assigned(recorder):
    with pytest.raises(LayerLanguageError, match=r"e\.relation is what the edge is"):
        EdgeSymbol(recorder).relation = NodeSymbol(recorder, Space.NODE).x


@layer
def by_both(
    g,
    x: NodeFeature("width"),
    first: Weight("relation", "node_type", "width", "out"),
    shift: Weight("relation", "node_type", "out"),
    second: Weight("node_type", "out", "out"),
    third: Weight("node_type", "width", "out"),
):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            inner = linear(e.source.x, first[e.relation, e.source.type])
            inner = inner * shift[e.relation, e.target.type]
            of_node = linear(e.source.x, third[e.source.type])
            n.out += linear(inner + of_node, second[e.target.type])
    return n.out


def _by_both_plainly(graph, x, first, shift, second, third):
    limits = torch.tensor(graph.node_offsets[1:])
    kinds = torch.bucketize(torch.arange(graph.num_nodes), limits, right=True)
    source, target, relation = (e.long() for e in (graph.source, graph.target, graph.relation))
    from_type, to_type = kinds[source], kinds[target]
    inner = torch.einsum("ei,eio->eo", x[source], first[relation, from_type])
    inner = inner * shift[relation, to_type]
    inner = inner + torch.einsum("ei,eio->eo", x[source], third[from_type])
    message = torch.einsum("ei,eio->eo", inner, second[to_type])
    return torch.zeros(graph.num_nodes, 3, dtype=x.dtype).index_add(0, target, message)


def _make_by_both():
    made = by_both(relations=16, node_types=2, width=5, out=3).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(9, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    return made, x


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_weights_by_relation_and_type_and_by_an_ends_type(backend):
    graph = sample_graph()
    made, x = _make_by_both()
    made.function.backend = backend
    tensors = [x, *made.parameters()]
    assert made.first.shape == (16, 2, 5, 3)
    out, expected = made(graph, x), _by_both_plainly(graph, *tensors)
    torch.testing.assert_close(out, expected)
    arrived = torch.randn_like(out)
    got = torch.autograd.grad(out, tensors, arrived)
    wanted = torch.autograd.grad(expected, tensors, arrived)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_by_both_pass_gradcheck():
    graph = sample_graph(edges=12)
    made, x = _make_by_both()
    tensors = {"x": x, **dict(made.named_parameters())}
    run = lambda *values: made.function(graph, dict(zip(tensors, values, strict=True)))  # noqa: E731
    assert torch.autograd.gradcheck(run, tuple(tensors.values()), fast_mode=True)


def test_a_nodes_value_by_its_type_is_multiplied_per_node(recorder):
    recorder.make.input("typed", (4, 2), Space.NODE_TYPE, "weight")
    edge, typed = EdgeSymbol(recorder), WeightArgument(recorder, "typed")
    product = edge.source.x @ typed[edge.source.type]
    assert recorder.make.steps["linear"].space is Space.NODE
    assert "expand linear {to=edge, way=source}" in repr(product)
    other = edge.source.x @ typed[edge.target.type]
    assert "way=relation" in repr(other)


def test_slices_by_both_need_a_relation_and_an_end(recorder):
    recorder.make.input("both", (4, 2), Space.RELATION_TYPE, "weight")
    edge, node = EdgeSymbol(recorder), NodeSymbol(recorder, Space.NODE)
    both, weight = WeightArgument(recorder, "both"), WeightArgument(recorder, "weight")
    for index in (
        edge.relation,
        (edge.source.type, edge.relation),
        (edge.relation, node.type),
        (edge.relation, 3),
    ):
        with pytest.raises(LayerLanguageError, match=r"both\[e\.relation, e\.source\.type\]"):
            both[index]
    with pytest.raises(LayerLanguageError, match="indexed with"):
        weight[edge.relation, edge.source.type]
    assert both[edge.relation, edge.target.type].shape == (4, 2)


def test_a_weight_by_both_of_another_shape_is_named():
    made, x = _make_by_both()
    made.first = torch.nn.Parameter(made.first.detach().flatten(0, 1))
    with pytest.raises(LayerArgumentError, match=r"\(32, 5, 3\), expected \(16, 2, 5, 3\)"):
        made(sample_graph(), x)


def test_a_reshaped_slice_is_still_a_weight_per_relation(recorder):
    recorder.make.input("flat", (8,), Space.RELATION, "weight")
    edge, flat = EdgeSymbol(recorder), WeightArgument(recorder, "flat")
    matrix = flat[edge.relation].reshape(4, 2)
    assert matrix.shape == (4, 2)
    assert "linear expand, reshape {transposed=False, way=relation}" in repr(edge.source.x @ matrix)
    first, rest = flat[edge.relation].split(2, 6)
    assert (first.shape, rest.shape) == ((2,), (6,))
    assert "expand slice {to=edge, way=relation}" in repr(first._as_expression())
