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

from shorthaul.relational.frontend.expressions import (
    FUNCTIONS,
    Expression,
    as_expression,
    combine,
    fail,
    group_way,
    multiply_matrix,
    ordered_spaces,
    reduce_edges,
    spread,
)
from shorthaul.relational.ir.spaces import Space


def linear(x: Any, weight: Any) -> Expression:
    """x times a weight: `linear(e.source.x, weight[e.relation])`, also `e.source.x @ weight[e.relation]`.

    Args:
        x: An expression; (in,), or (heads, in).
        weight: A weight; (in, out), or (heads, in, out).
    """
    return multiply_matrix(x, weight)


def dot(left: Any, right: Any) -> Expression:
    """The inner product along the last dimension, which stays with width 1.

    Args:
        left: An expression.
        right: An expression of the same widths.
    """
    product = combine("multiply", left, right)
    if not product.shape:
        raise fail("an inner product of single numbers", "multiply them with *")
    return product._recorder.add("sum", product._value, axes=(len(product.shape) - 1,))


def outer(left: Any, right: Any) -> Expression:
    """The outer product of two vectors.

    Args:
        left: An expression.
        right: An expression.
    """
    left, right = as_expression(left), as_expression(right)
    if not left.shape or not right.shape:
        raise fail("an outer product of single numbers", "multiply them with *")
    return left.reshape(*left.shape, 1) * right.reshape(*right.shape[:-1], 1, right.shape[-1])


def concat(*values: Any) -> Expression:
    """Values side by side along the last dimension."""
    parts = [as_expression(value) for value in values]
    if not parts or any(not part.shape for part in parts):
        raise fail(
            "only values with a width can be put side by side", "give numbers one: x.reshape(1)"
        )
    space = max((part._space for part in parts), key=ordered_spaces)
    spreaded = [spread(part, space) for part in parts]
    axis = len(spreaded[0].shape) - 1
    return parts[0]._recorder.add("concat", *(part._value for part in spreaded), axis=axis)


def reduce_sum(value: Any, within: str = "target") -> Expression:
    """The sum over the incoming edges. Its arguments are those of `reduce_max`."""
    return reduce_edges(value, "sum", within)


def reduce_mean(value: Any, within: str = "target") -> Expression:
    """The mean over the incoming edges, 0 where there are none. Its arguments are those of `reduce_max`."""
    value = spread(as_expression(value), Space.EDGE)
    recorder = value._recorder
    way = group_way(recorder, within)
    count = recorder.add("count", of=Space.EDGE, way=way)
    counts = recorder.add("expand", count._value, to=Space.EDGE, way=way)
    return reduce_edges(value / counts, "sum", within)


def reduce_max(value: Any, within: str = "target") -> Expression:
    """The maximum over the incoming edges, 0 where there are none.

    Args:
        value: An expression of edges.
        within: `"target"` (default) for a value per target, `"relation"` for one per edge, over the
            edges of its target with the same relation.
    """
    return reduce_edges(value, "max", within)


def reduce_min(value: Any, within: str = "target") -> Expression:
    """The minimum over the incoming edges, 0 where there are none. Its arguments are those of `reduce_max`."""
    return reduce_edges(value, "min", within)


def softmax(value: Any, within: str = "target") -> Expression:
    """exp(value) as a share of the edges of its target; never overflows.

    Its arguments are those of `reduce_max`.
    """
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
    """Zero with `probability`, else scaled up; only while training, from the layer's seed.

    Args:
        value: An expression.
        probability: Share of the values that become zero.
    """
    value = as_expression(value)
    return value * _dropout_mask(value, value.shape, probability)


def drop_edges(value: Any, probability: float) -> Expression:
    """Whole edges zero with `probability`, the others scaled up; only while training.

    Args:
        value: An expression of edges, such as a message.
        probability: Share of the edges that become zero.
    """
    value = spread(as_expression(value), Space.EDGE)
    return value * _dropout_mask(value, (1,) * len(value.shape), probability)


def _dropout_mask(value: Expression, shape: tuple[int, ...], probability: float) -> Expression:
    """0 with `probability`, else what keeps the mean: numbers of `shape` for each row of `value`."""
    if not isinstance(probability, int | float) or not 0 <= probability < 1:
        raise fail(f"dropout with probability {probability!r}", "a number from 0 up to 1, below it")
    recorder = value._recorder
    recorder.streams += 1
    return recorder.add(
        "keep",
        of=value._space,
        shape=shape,
        probability=float(probability),
        stream=recorder.streams,
    )


def over_nodes(value: Any) -> Expression:
    """A value of targets as one of all nodes: 0 for nodes that are no targets.

    A sum over incoming edges is known at targets alone; what is read at `e.source` must be known at
    every node: `n.degree = over_nodes(n.degree)`. On a whole graph every node is a target.

    Args:
        value: An expression of targets.
    """
    value = as_expression(value)
    if value._space is not Space.TARGET:
        raise fail(
            f"over_nodes of a value per {value._space.value}", "give it a value of targets: n.total"
        )
    return value._recorder.add("extend", value._value)


def layer_norm(
    value: Any, weight: Any = None, bias: Any = None, epsilon: float = 1e-5
) -> Expression:
    """Zero mean and unit variance along the last dimension, then scaled and shifted.

    Args:
        value: An expression.
        weight: Scales the result; None (default) for no scale.
        bias: Is added to it; None (default) for none.
        epsilon: Added to the variance (default 1e-5).
    """
    value = as_expression(value)
    if not value.shape or not value.shape[-1]:
        raise fail("layer_norm of a value without a width", "give it a value with several elements")
    axes, width = (len(value.shape) - 1,), value.shape[-1]
    recorder = value._recorder
    mean = recorder.add("sum", value._value, axes=axes) / width
    centered = value - mean
    variance = recorder.add("sum", (centered * centered)._value, axes=axes) / width
    result = centered / sqrt(variance + epsilon)
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


def maximum(left: Any, right: Any) -> Expression:
    """The larger of two values, element by element; of equal ones each gets half of the gradient.

    Args:
        left: An expression.
        right: Another, or a number.
    """
    return combine("maximum", left, right)


def minimum(left: Any, right: Any) -> Expression:
    """The smaller of two values. Its arguments are those of `maximum`."""
    return combine("minimum", left, right)


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
sine = _unary("sine", "The sine of each element.")
cosine = _unary("cosine", "The cosine of each element.")
positive = _unary("step", "1 where an element is above 0, else 0; no gradient passes.")


def softplus(value: Any) -> Expression:
    """log(1 + exp(x)), which never overflows."""
    value = as_expression(value)
    return relu(value) + log(exp(-absolute(value)) + 1.0)


def total(value: Any, *axes: int) -> Expression:
    """The sum along dimensions of one row, which stay with width 1; without any, along all.

    Args:
        value: An expression.
        axes: Dimensions of one row; none (default) for all of them.
    """
    value = as_expression(value)
    axes = axes or tuple(range(len(value.shape)))
    if any(not 0 <= axis < len(value.shape) for axis in axes):
        raise fail(
            f"total along {axes} of a row of {value.shape or 'one number'}",
            f"dimensions of one row are numbered from 0 to {len(value.shape) - 1}",
        )
    return value._recorder.add("sum", value._value, axes=tuple(sorted(axes)))


def leaky_relu(value: Any, negative_slope: float = 0.2) -> Expression:
    """x where it is positive, a multiple of it elsewhere.

    Args:
        value: An expression.
        negative_slope: The multiple (default 0.2, as in graph attention; PyTorch's is 0.01).
    """
    value = as_expression(value)
    return value._recorder.add("leaky_relu", value._value, slope=float(negative_slope))


def broadcast(value: Any, *shape: int) -> Expression:
    """`value` repeated to these widths.

    Args:
        value: An expression.
        shape: The widths.
    """
    value = as_expression(value)
    return value._recorder.add("broadcast", value._value, shape=tuple(shape))


FUNCTIONS.update(
    name
    for name, made in globals().items()
    if not name.startswith("_") and getattr(made, "__module__", "") == __name__
)
