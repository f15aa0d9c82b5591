"""What authors may write, and what they are told when they write something else."""

import pytest
import torch
from torch.nn import functional

from shorthaul.errors import LayerArgumentError, LayerLanguageError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.relational import (
    NodeFeature,
    TargetFeature,
    Weight,
    drop_edges,
    layer,
    leaky_relu,
    linear,
    maximum,
    reduce_sum,
    softmax,
)
from shorthaul.relational.frontend.trace import trace

SIZES = {"width": 4, "out": 2}


def _record(function):
    return trace(function, SIZES, {})


def test_a_sum_can_be_written_both_ways():
    def short(g, x: NodeFeature("width")):
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.out += e.source.x
        return n.out

    def long(g, x: NodeFeature("width")):
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.out = reduce_sum(e.source.x)
        return n.out

    assert _record(short).steps == _record(long).steps


def test_numbers_stand_on_either_side():
    def program(g, x: NodeFeature("width")):
        for n in g.nodes():
            n.out = 2.0 / (1 - n.x) - 3 * n.x / 4
        return n.out

    text = _record(program).text()
    for operation in ("reciprocal", "scale", "shift", "subtract"):
        assert operation in text


def test_parts_of_a_value():
    def program(g, x: NodeFeature("width")):
        for n in g.nodes():
            first, second = n.x.split(1, 3)
            n.out = first + second
        return n.out

    assert _record(program).outputs[0][0] == "out"


BAD = {}


def _bad(said):
    def keep(function):
        BAD[function.__name__] = (function, said)
        return function

    return keep


@_bad("nodes have no value `k`")
def reads_too_early(g, x: NodeFeature("width")):
    for n in g.nodes():
        n.out = n.k
    return n.out


@_bad("edges have no value `x`.*e.source.x")
def forgets_the_end(g, x: NodeFeature("width")):
    for e in g.edges():
        e.m = e.x
    return e.m


@_bad("in place of `if`")
def branches(g, x: NodeFeature("width")):
    for n in g.nodes():
        n.out = n.x if n.x else -n.x
    return n.out


@_bad("cannot be inside one another")
def nests(g, x: NodeFeature("width")):
    for n in g.nodes():
        for e in g.edges():
            n.out = e.source.x
    return n.out


@_bad("incoming edges belong to a target")
def loops_over_other_nodes(g, x: NodeFeature("width")):
    for n in g.nodes():
        for e in n.incoming_edges():
            n.out = reduce_sum(e.source.x)
    return n.out


@_bad("has a value per edge")
def forgets_to_reduce(g, x: NodeFeature("width")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out = e.source.x
    return n.out


@_bad("index a weight with e.relation")
def indexes_with_a_number(g, x: NodeFeature("width"), w: Weight("relation", "width", "out")):
    for e in g.edges():
        e.m = linear(e.source.x, w[0])
    return e.m


@_bad("one slice per relation, not per node type")
def indexes_with_the_wrong_type(g, x: NodeFeature("width"), w: Weight("relation", "width", "out")):
    for n in g.nodes():
        n.m = linear(n.x, w[n.type])
    return n.m


@_bad("within='node'")
def groups_by_something_else(g, x: NodeFeature("width")):
    for e in g.edges():
        e.m = softmax(e.source.x, within="node")
    return e.m


@_bad("not known for other nodes")
def reads_targets_from_sources(g, x: NodeFeature("width")):
    for n in g.target_nodes():
        n.k = n.x + 1
    for e in g.edges():
        e.m = e.source.k
    return e.m


@_bad("cannot be iterated")
def unpacks(g, x: NodeFeature("width")):
    for n in g.nodes():
        n.a, n.b = n.x
    return n.a


@_bad("assign in a loop over nodes")
def assigns_to_an_end(g, x: NodeFeature("width")):
    for e in g.edges():
        e.source.k = e.source.x
    return e.source.k


@_bad("returned None")
def returns_nothing(g, x: NodeFeature("width")):
    for n in g.nodes():
        n.out = n.x


@pytest.mark.parametrize("name", BAD)
def test_mistakes_show_the_line_and_what_to_write(name):
    function, said = BAD[name]
    with pytest.raises(LayerLanguageError, match=f"(?s){said}") as caught:
        _record(function)
    assert "Instead: " in str(caught.value)
    if name != "returns_nothing":
        assert f"in {name} (test_language.py:" in str(caught.value)


def test_a_missing_declaration_is_named():
    with pytest.raises(LayerLanguageError, match="`w` of lazy does not say what it is"):

        @layer
        def lazy(g, w):
            return w


def test_leaky_relu_takes_the_slope_by_the_name_that_torch_gives_it():
    @layer
    def bend(g, x: NodeFeature("width")):
        for n in g.target_nodes():
            n.out = leaky_relu(n.x) + 10 * leaky_relu(n.x, negative_slope=0.01)
        return n.out

    module, graph = bend(width=2), RelationalGraph.from_edges([0], [1])
    module.function.backend = "reference"
    x = torch.tensor([[1.0, -1.0], [2.0, -3.0]])
    expected = functional.leaky_relu(x, 0.2) + 10 * functional.leaky_relu(x)
    torch.testing.assert_close(module(graph, x), expected)


def test_a_feature_of_targets_has_a_row_per_target():
    @layer
    def meets(g, x: NodeFeature("width"), other: TargetFeature("width")):
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.out += e.source.x * e.target.other
            n.out = maximum(n.out, n.other)
        return n.out

    module = meets(width=3)
    graph = RelationalGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 1, 0]]), num_nodes=3)
    (block,) = NeighborSampler(graph, [-1]).sample([1]).blocks
    x, other = torch.randn(3, 3), torch.randn(1, 3)
    expected = torch.maximum((x[0] + x[1]) * other[0], other[0])
    torch.testing.assert_close(module(block, x[block.source_nodes], other)[0], expected)
    with pytest.raises(LayerArgumentError, match="expected \\(1, 3\\): 1 target rows"):
        module(block, x[block.source_nodes], x)


def test_whole_edges_are_dropped_in_training_alone():
    @layer
    def drops(g, x: NodeFeature("width")):
        for e in g.edges():
            e.heard = drop_edges(e.source.x, 0.5)
        return e.heard

    module = drops(width=4)
    graph = RelationalGraph.from_edges([0] * 200, [1] * 200)
    x = torch.ones(2, 4)
    made = module(graph, x)
    assert set(made.flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(made, made[:, :1].expand_as(made))
    assert torch.equal(module.eval()(graph, x), torch.ones(200, 4))
