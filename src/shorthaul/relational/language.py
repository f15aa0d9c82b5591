"""The language: a layer is a Python function over symbolic nodes and edges, run once to be recorded.

>>> from shorthaul.relational import NodeFeature, Weight, layer, linear
>>> @layer
... def rgcn(g, x: NodeFeature("width"), weight: Weight("relation", "width", "out")):
...     for n in g.target_nodes():
...         for e in n.incoming_edges():
...             n.out += linear(e.source.x, weight[e.relation])
...     return n.out

Every loop runs exactly once, with a symbol that stands for all nodes or all edges. What is assigned
to an attribute of a symbol (`e.message = ...`) is a value per node or per edge and can be read through
any symbol that reaches it (`e.source.hidden`). `n.out += value of e` inside `for e in
n.incoming_edges()` is the sum over all of them.
"""

from __future__ import annotations

from typing import Any

from shorthaul.relational.operations import broadcast_shapes
from shorthaul.relational.spaces import Space, find_way
from shorthaul.relational.symbols import (
    Expression,
    WeightSlice,
    as_expression,
    combine,
    group_way,
    ordered_spaces,
    reduce_edges,
    spread,
)


def linear(x: Any, weight: Any) -> Expression:
    """x times a weight: `linear(e.source.x, weight[e.relation])`. With heads: (heads, in) by (heads, in, out)."""
    x = as_expression(x)
    recorder = x._recorder
    way: str | None
    if isinstance(weight, WeightSlice):
        way = weight.index.way
        if way == "type" and x._space is Space.EDGE:
            raise recorder.fail(
                "an edge's value was multiplied by a weight of a node type",
                "compute it in a loop over nodes and read it as e.source.<name>",
            )
        value = weight._value
    else:
        matrix = as_expression(weight)
        value = matrix._value
        way = None if matrix._space is x._space else find_way(x._space, matrix._space)
        if way is None and matrix._space is not x._space:
            raise recorder.fail(
                f"a value per {x._space.value} was multiplied by a weight per {matrix._space.value}",
                "slice the weight by what the value has: weight[e.relation], weight[n.type]",
            )
    return recorder.add("linear", x._value, value, way=way, transposed=False)


def dot(left: Any, right: Any) -> Expression:
    """The inner product along the last dimension, which stays with width 1."""
    product = combine("multiply", left, right)
    return product._recorder.add("sum", product._value, axes=(len(product.shape) - 1,))


def outer(left: Any, right: Any) -> Expression:
    """The outer product of two vectors."""
    left, right = as_expression(left), as_expression(right)
    return left.reshape(*left.shape, 1) * right.reshape(*right.shape[:-1], 1, right.shape[-1])


def concat(*values: Any) -> Expression:
    """Values side by side along the last dimension."""
    parts = [as_expression(value) for value in values]
    space = max((part._space for part in parts), key=ordered_spaces)
    spreaded = [spread(part, space) for part in parts]
    axis = len(spreaded[0].shape) - 1
    return parts[0]._recorder.add("concat", *(part._value for part in spreaded), axis=axis)


def reduce_sum(value: Any) -> Expression:
    """The sum over all incoming edges of each target."""
    return reduce_edges(value, "sum")


def reduce_mean(value: Any) -> Expression:
    """The mean over all incoming edges of each target; 0 where there are none."""
    value = spread(as_expression(value), Space.EDGE)
    recorder = value._recorder
    count = recorder.add("count", of=Space.EDGE, way="target")
    counts = recorder.add("expand", count._value, to=Space.EDGE, way="target")
    return reduce_edges(value / counts, "sum")


def reduce_max(value: Any, within: str = "target") -> Expression:
    """The maximum over the incoming edges, 0 where there are none; within a relation: for every edge."""
    return reduce_edges(value, "max", within)


def reduce_min(value: Any, within: str = "target") -> Expression:
    """The minimum, otherwise as `reduce_max`."""
    return reduce_edges(value, "min", within)


def softmax(value: Any, within: str = "target") -> Expression:
    """exp(value) as a share of its target's edges, or of those with the same relation; never overflows."""
    value = spread(as_expression(value), Space.EDGE)
    recorder = value._recorder
    way = group_way(recorder, within)
    # The maximum only keeps exp in range: the result does not depend on it, so no gradient passes.
    peak = recorder.add("reduce", value._value, kind="max", way=way, detached=True)
    spread_peak = recorder.add("expand", peak._value, to=Space.EDGE, way=way)
    power = exp(value - spread_peak)
    total = recorder.add("reduce", power._value, kind="sum", way=way)
    return power / recorder.add("expand", total._value, to=Space.EDGE, way=way)


def dropout(value: Any, probability: float) -> Expression:
    """Zero with `probability`, else scaled up; only while training, from the layer's seed."""
    value = as_expression(value)
    recorder = value._recorder
    recorder.streams += 1
    mask = recorder.add(
        "keep",
        of=value._space,
        shape=value.shape,
        probability=float(probability),
        stream=recorder.streams,
    )
    return value * mask


def layer_norm(
    value: Any, weight: Any = None, bias: Any = None, epsilon: float = 1e-5
) -> Expression:
    """Zero mean and unit variance along the last dimension, then scaled and shifted."""
    value = as_expression(value)
    axes, width = (len(value.shape) - 1,), value.shape[-1]
    recorder = value._recorder
    mean = recorder.add("sum", value._value, axes=axes) / width
    centred = value - mean
    variance = recorder.add("sum", (centred * centred)._value, axes=axes) / width
    result = centred / sqrt(variance + epsilon)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


def _unary(operation: str, summary: str) -> Any:
    def function(value: Any) -> Expression:
        value = as_expression(value)
        return value._recorder.add(operation, value._value)

    function.__name__ = function.__qualname__ = operation
    function.__doc__ = summary
    return function


exp = _unary("exp", "e to the power of each element.")
log = _unary("log", "The natural logarithm of each element.")
sqrt = _unary("sqrt", "The square root of each element.")
absolute = _unary("absolute", "Each element without its sign.")
relu = _unary("relu", "The larger of each element and 0.")
elu = _unary("elu", "x, or exp(x) - 1 below 0.")
gelu = _unary("gelu", "x times the normal distribution function of x, exactly.")
silu = _unary("silu", "x times the sigmoid of x.")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)).")
tanh = _unary("tanh", "The hyperbolic tangent of each element.")


positive = _unary("step", "1 where an element is above 0, else 0; no gradient passes.")


def total(value: Any, *axes: int) -> Expression:
    """The sum along dimensions of one row, which stay with width 1."""
    value = as_expression(value)
    return value._recorder.add("sum", value._value, axes=tuple(sorted(axes)))


def leaky_relu(value: Any, slope: float = 0.2) -> Expression:
    """x, or `slope` times x below 0."""
    value = as_expression(value)
    return value._recorder.add("leaky_relu", value._value, slope=float(slope))


def broadcast(value: Any, *shape: int) -> Expression:
    """`value` repeated to these widths."""
    value = as_expression(value)
    return value._recorder.add(
        "broadcast", value._value, shape=broadcast_shapes(value.shape, shape)
    )
