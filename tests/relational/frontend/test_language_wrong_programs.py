"""Programs that are wrong, each in its own way: the error shows the author's line and what to write."""

import math

import numpy
import pytest
import torch

from shorthaul.errors import LayerLanguageError, RelationalProgramError
from shorthaul.relational import (
    EdgeFeature,
    NodeFeature,
    Weight,
    broadcast,
    concat,
    dot,
    drop_edges,
    dropout,
    layer_norm,
    linear,
    maximum,
    outer,
    over_nodes,
    reduce_sum,
    relu,
    total,
)
from shorthaul.relational.frontend.trace import trace

SIZES = {"width": 4, "out": 2}
X = NodeFeature("width")
WRONG = {}


def _wrong(said, kind=LayerLanguageError):
    def keep(function):
        WRONG[function.__name__] = (function, said, kind)
        return function

    return keep


# Functions on values of the wrong place


@_wrong("over_nodes of a value per node")
def spreads_what_is_known(g, x: X):
    for n in g.nodes():
        n.out = over_nodes(n.x)
    return n.out


@_wrong("not known for other nodes.*over_nodes")
def reads_a_sum_at_a_source(g, x: X):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.total += e.source.x
    for e in g.edges():
        e.out = e.source.total
    return e.out


@_wrong("say which node")
def drops_edges_of_nodes(g, x: X):
    for n in g.nodes():
        n.out = drop_edges(n.x, 0.5)
    return n.out


@_wrong("expected a value of the graph")
def compares_with_text(g, x: X):
    for n in g.nodes():
        n.out = maximum(n.x, "1")
    return n.out


# Python's own constructs on values


@_wrong("cannot be compared.*positive")
def compares(g, x: X):
    for n in g.nodes():
        n.out = n.x if n.x > 0 else -n.x
    return n.out


@_wrong("cannot be compared")
def compares_for_equality(g, x: X):
    for n in g.nodes():
        if n.x == 0:
            n.out = n.x
    return n.out


@_wrong("cannot be compared.*relu.*reduce_max")
def takes_pythons_max(g, x: X):
    for n in g.nodes():
        n.out = max(n.x, 0)
    return n.out


@_wrong("cannot be iterated")
def takes_pythons_sum(g, x: X):
    for n in g.nodes():
        n.out = sum(n.x)
    return n.out


@_wrong("in place of `if`.*`while`")
def loops_while(g, x: X):
    for n in g.nodes():
        while n.x:
            n.x = n.x - 1
    return n.x


@_wrong("in place of `if`")
def negates_logically(g, x: X):
    for n in g.nodes():
        n.out = not n.x
    return n.out


@_wrong("cannot be indexed.*split")
def indexes_a_value(g, x: X):
    for n in g.nodes():
        n.out = n.x[0]
    return n.out


@_wrong("cannot become a number.*use the language's functions")
def asks_for_a_float(g, x: X):
    for n in g.nodes():
        n.out = n.x * math.exp(n.x)
    return n.out


@_wrong("cannot become a number")
def asks_for_a_length(g, x: X):
    for n in g.nodes():
        n.out = n.x / len(n.x)
    return n.out


@_wrong(r"language has \+ - \* / @")
def takes_a_remainder(g, x: X):
    for n in g.nodes():
        n.out = n.x % 2
    return n.out


@_wrong("a power of -1")
def takes_a_negative_power(g, x: X):
    for n in g.nodes():
        n.out = n.x**-1
    return n.out


@_wrong("divided by 0")
def divides_by_nothing(g, x: X):
    for n in g.nodes():
        n.out = n.x / 0
    return n.out


# Other libraries


@_wrong("torch's `exp` does not work on symbols.*use shorthaul.relational.exp")
def uses_torch(g, x: X):
    for n in g.nodes():
        n.out = torch.exp(n.x)
    return n.out


@_wrong("torch's `cat` does not work.*use shorthaul.relational.concat")
def uses_torch_cat(g, x: X):
    for n in g.nodes():
        n.out = torch.cat([n.x, n.x])
    return n.out


@_wrong("torch's `sum` does not work.*reduce_sum over edges, total")
def uses_torch_sum(g, x: X):
    for n in g.nodes():
        n.out = torch.sum(n.x)
    return n.out


@_wrong("Tensor of .4,. is no value of the graph.*declare it as an argument")
def adds_a_tensor(g, x: X):
    for n in g.nodes():
        n.out = torch.ones(4) + n.x
    return n.out


@_wrong("numpy's `exp` does not work on symbols.*use shorthaul.relational.exp")
def uses_numpy(g, x: X):
    for n in g.nodes():
        n.out = numpy.exp(n.x)
    return n.out


@_wrong("Tensor of .4,. is no value")
def adds_a_tensor_on_the_right(g, x: X):
    for n in g.nodes():
        n.out = n.x + torch.ones(4)
    return n.out


@_wrong("a value has no `.sum`.*functions of shorthaul.relational")
def calls_a_tensors_method(g, x: X):
    for n in g.nodes():
        n.out = n.x.sum()
    return n.out


# Loops, nodes, edges and names


@_wrong("the graph has no `out_edges`.*g.edges")
def loops_over_something_else(g, x: X):
    for e in g.out_edges():
        e.out = e.source.x
    return e.out


@_wrong("has no `u`|edges have no value `u`")
def names_the_source_otherwise(g, x: X):
    for e in g.edges():
        e.out = e.u.x
    return e.out


@_wrong("e.source is a node, not a value")
def takes_a_node_for_a_value(g, x: X):
    for e in g.edges():
        e.out = e.source * 2
    return e.out


@_wrong("e is an edge, not a value")
def takes_an_edge_for_a_value(g, x: X):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e
    return n.out


@_wrong("`x` has a value per node.*n.x, e.source.x or e.target.x")
def uses_a_bare_feature(g, x: X, w: Weight("width", "out")):
    for n in g.nodes():
        n.out = linear(x, w)
    return n.out


@_wrong("`x` has a value per node.*n.x")
def indexes_a_feature(g, x: X):
    for e in g.edges():
        e.out = x[e.source]
    return e.out


@_wrong("`strength` has a value per edge.*e.strength")
def uses_a_bare_edge_feature(g, x: X, strength: EdgeFeature()):
    for e in g.edges():
        e.out = e.source.x * strength
    return e.out


@_wrong("nodes have no value `y`.*there are x")
def reads_an_undeclared_feature(g, x: X):
    for e in g.edges():
        e.out = e.source.y
    return e.out


@_wrong("`out` is assigned the number 0.*leave the line out")
def starts_a_sum_at_zero(g, x: X):
    for n in g.target_nodes():
        n.out = 0
        for e in n.incoming_edges():
            n.out += e.source.x
    return n.out


@_wrong("belongs inside `for e in n.incoming_edges")
def sums_outside_the_loop(g, x: X):
    for e in g.edges():
        e.m = relu(e.source.x)
    for n in g.target_nodes():
        n.out += e.m
    return n.out


@_wrong("assigned to nodes, but has a value per target")
def assigns_in_the_wrong_loop(g, x: X):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.sum += e.source.x
        kept = n.sum
    for n in g.nodes():
        n.out = kept
    return n.out


@_wrong("say which node is meant")
def mixes_nodes_and_edges(g, x: X):
    for n in g.nodes():
        kept = relu(n.x)
    for e in g.edges():
        e.out = e.source.x + kept
    return e.out


@_wrong("nodes have no value `out`.*n.out \\+=")
def multiplies_a_sum_that_is_not_there(g, x: X):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out = n.out * e.source.x
    return n.out


@_wrong("e.relation is no number")
def computes_with_the_relation(g, x: X):
    for e in g.edges():
        e.out = e.source.x * e.relation
    return e.out


@_wrong("n.type is no number")
def computes_with_the_type(g, x: X):
    for n in g.nodes():
        n.out = n.x + n.type
    return n.out


# Weights


@_wrong("`w` was indexed with NodeSymbol.*e.relation or n.type")
def slices_by_a_node(g, x: X, w: Weight("relation", "width", "out")):
    for e in g.edges():
        e.out = linear(e.source.x, w[e.source])
    return e.out


@_wrong("`w` is one for all and has no slices")
def slices_what_is_whole(g, x: X, w: Weight("width", "out")):
    for e in g.edges():
        e.out = linear(e.source.x, w[e.relation])
    return e.out


@_wrong("multiplied by a weight per relation")
def forgets_to_slice(g, x: X, w: Weight("relation", "width", "out")):
    for n in g.nodes():
        n.out = linear(n.x, w)
    return n.out


# Widths: the operands are named with their shapes


@_wrong("vectors have width 4, the matrix takes 2", RelationalProgramError)
def multiplies_by_another_width(g, x: X, w: Weight("out", "out")):
    for n in g.nodes():
        n.out = n.x @ w
    return n.out


@_wrong("sizes .2, 4. do not go together", RelationalProgramError)
def adds_other_widths(g, x: X, bias: Weight("out")):
    for n in g.nodes():
        n.out = n.x + bias
    return n.out


@_wrong("sizes .3, 4. do not go together", RelationalProgramError)
def repeats_to_a_width_that_does_not_fit(g, x: X):
    for n in g.nodes():
        n.out = broadcast(n.x, 3)
    return n.out


@_wrong("4 elements do not fill", RelationalProgramError)
def reshapes_to_a_width_that_does_not_fit(g, x: X):
    for n in g.nodes():
        n.out = n.x.reshape(3)
    return n.out


@_wrong("only values with a width can be put side by side.*reshape")
def concatenates_numbers(g, x: X, strength: EdgeFeature()):
    for e in g.edges():
        e.out = concat(e.source.x, e.strength)
    return e.out


@_wrong("inner product of single numbers")
def takes_the_inner_product_of_numbers(g, strength: EdgeFeature()):
    for e in g.edges():
        e.out = dot(e.strength, e.strength)
    return e.out


@_wrong("outer product of single numbers")
def takes_the_outer_product_of_numbers(g, strength: EdgeFeature()):
    for e in g.edges():
        e.out = outer(e.strength, e.strength)
    return e.out


@_wrong("total along .2,. of a row of .4,.")
def totals_a_dimension_that_is_not_there(g, x: X):
    for n in g.nodes():
        n.out = total(n.x, 2)
    return n.out


@_wrong("layer_norm of a value without a width")
def normalizes_a_number(g, strength: EdgeFeature()):
    for e in g.edges():
        e.out = layer_norm(e.strength)
    return e.out


@_wrong("dropout with probability 1.5")
def drops_too_much(g, x: X):
    for n in g.nodes():
        n.out = dropout(n.x, 1.5)
    return n.out


@_wrong("got float 2.0")
def reduces_a_number(g, x: X):
    for n in g.target_nodes():
        for _ in n.incoming_edges():
            n.out = reduce_sum(2.0)
    return n.out


@pytest.mark.parametrize("name", WRONG)
def test_the_error_shows_the_line_and_what_to_write(name):
    function, said, kind = WRONG[name]
    with pytest.raises(kind, match=f"(?s){said}") as caught:
        trace(function, SIZES, {})
    text = str(caught.value)
    assert f"in {name} (test_language_wrong_programs.py:" in text
    assert ("Instead: " if kind is LayerLanguageError else "operands: ") in text


@pytest.mark.parametrize("result", [None, 3, "n.out"])
def test_only_values_of_nodes_and_edges_are_returned(result):
    def returns(g, x: X, w: Weight("width")):
        return {"n.out": w}.get(result, result)

    with pytest.raises(LayerLanguageError, match=r"returned [\s\S]*return a value of nodes"):
        trace(returns, SIZES, {})
