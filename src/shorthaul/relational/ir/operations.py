"""What every operation of the IR is: the shape and the space of its result.

`pointwise.py` has the operations on elements; these are the others::

    expand x {to, way}            row i of a finer space reads row way(i) of x
    reduce x {kind, way}          the sum, maximum or minimum of the rows that lead to a coarser row
    count {of, way}               how many rows lead to each coarser row
    restrict x, extend x          between node and target rows; what is added is zero
    linear x, w {way, transposed} x W, with the weight that `way` leads to; `(heads, in)` x `(heads, in, out)`
                                  is taken head by head
    outer x, y {way}              the sum of the outer products of rows that lead to one weight: linear's
                                  gradient for its weight
    sum x {axes}                  within a row; the summed dimensions stay, with size 1
    broadcast x {shape}           its transpose
    reshape, transpose, slice, place, concat    within a row
    keep {of, probability, stream}              dropout's mask: 0 or 1 / (1 - probability)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from shorthaul.errors import RelationalProgramError
from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.spaces import Space, follow
from shorthaul.relational.ir.step import Shape, SourceLine, Step

Inferred = tuple[Shape, Space]


def infer(
    operation: str,
    operands: Sequence[Step],
    attributes: dict[str, Any],
    line: SourceLine | None = None,
) -> Inferred:
    """Shape and space of the result; `RelationalProgramError` where operands do not fit."""
    try:
        if operation in POINTWISE:
            return _pointwise(operation, operands)
        return _RULES[operation](operands, attributes)
    except ValueError as error:
        named = ", ".join(f"{step.name} {_shape(step.shape)}" for step in operands)
        raise RelationalProgramError(operation, str(error), named, line) from None


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all can be repeated to, aligned at the end, as in PyTorch."""
    rank = max(map(len, shapes), default=0)
    result = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            raise ValueError(f"sizes {sorted(sizes)} do not go together")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def _shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"


def _pointwise(operation: str, operands: Sequence[Step]) -> Inferred:
    expected = POINTWISE[operation].operands
    if len(operands) != expected:
        raise ValueError(f"expected {expected} operands, got {len(operands)}")
    spaces = {step.space for step in operands}
    if len(spaces) != 1:
        raise ValueError(f"rows are over {' and '.join(sorted(s.value for s in spaces))}")
    return broadcast_shapes(*(step.shape for step in operands)), spaces.pop()


def _expand(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    to, way = attributes["to"], attributes["way"]
    if follow(to, way) is not x.space:
        raise ValueError(f"`{way}` leads from {to.value} to {follow(to, way).value} rows")
    return x.shape, to


def _reduce(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    if attributes["kind"] not in ("sum", "max", "min"):
        raise ValueError(f"there is no reduction `{attributes['kind']}`")
    return x.shape, follow(x.space, attributes["way"])


def _count(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    return (), follow(attributes["of"], attributes["way"])


def _restrict(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    if x.space is not Space.NODE:
        raise ValueError("only node rows can be restricted to targets")
    return x.shape, Space.TARGET


def _extend(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    if x.space is not Space.TARGET:
        raise ValueError("only target rows can be extended to nodes")
    return x.shape, Space.NODE


def _linear(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    x, w = operands
    _require_way(x, w, attributes["way"])
    if not x.shape or len(w.shape) not in (2, 3):
        raise ValueError("a linear map takes vectors and matrices")
    rows, columns = w.shape[-2:]
    if attributes["transposed"]:
        rows, columns = columns, rows
    if x.shape[-1] != rows:
        raise ValueError(f"vectors have width {x.shape[-1]}, the matrix takes {rows}")
    if len(w.shape) == 3 and (len(x.shape) < 2 or x.shape[0] != w.shape[0]):
        raise ValueError(f"the matrix has {w.shape[0]} heads")
    return (*x.shape[:-1], columns), x.space


def _outer(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    x, y = operands
    if x.space is not y.space or x.shape[:-1] != y.shape[:-1]:
        raise ValueError("the two sides have different rows")
    way = attributes["way"]
    space = x.space if way is None else follow(x.space, way)
    heads = x.shape[:1] if attributes["heads"] else ()
    return (*heads, x.shape[-1], y.shape[-1]), space


def _require_way(x: Step, w: Step, way: str | None) -> None:
    to = x.space if way is None else follow(x.space, way)
    if to is not w.space:
        raise ValueError(f"the matrix is over {w.space.value}, the vectors lead to {to.value}")


def _sum(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    axes = attributes["axes"]
    if not all(0 <= axis < len(x.shape) for axis in axes):
        raise ValueError(f"there are no axes {axes}")
    return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape)), x.space


def _broadcast(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    if broadcast_shapes(x.shape, attributes["shape"]) != attributes["shape"]:
        raise ValueError(f"cannot be repeated to {_shape(attributes['shape'])}")
    return attributes["shape"], x.space


def _reshape(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    if prod(x.shape) != prod(attributes["shape"]):
        raise ValueError(f"{prod(x.shape)} elements do not fill {_shape(attributes['shape'])}")
    return attributes["shape"], x.space


def _transpose(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    if len(x.shape) < 2:
        raise ValueError("only matrices can be transposed")
    return (*x.shape[:-2], x.shape[-1], x.shape[-2]), x.space


def _slice(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    axis, start, stop = attributes["axis"], attributes["start"], attributes["stop"]
    if not (0 <= axis < len(x.shape) and 0 <= start <= stop <= x.shape[axis]):
        raise ValueError(f"there are no elements {start} to {stop} along axis {axis}")
    return (*x.shape[:axis], stop - start, *x.shape[axis + 1 :]), x.space


def _place(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    (x,) = operands
    axis, size = attributes["axis"], attributes["size"]
    return (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.space


def _concat(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    axis = attributes["axis"]
    spaces = {step.space for step in operands}
    around = {(*step.shape[:axis], *step.shape[axis + 1 :]) for step in operands}
    if len(spaces) != 1 or len(around) != 1 or any(axis >= len(s.shape) for s in operands):
        raise ValueError("only values with the same rows and widths can be put side by side")
    first = operands[0].shape
    total = sum(step.shape[axis] for step in operands)
    return (*first[:axis], total, *first[axis + 1 :]), spaces.pop()


def _keep(operands: Sequence[Step], attributes: dict[str, Any]) -> Inferred:
    return attributes["shape"], attributes["of"]


_RULES: dict[str, Callable[[Sequence[Step], dict[str, Any]], Inferred]] = {
    "expand": _expand,
    "reduce": _reduce,
    "count": _count,
    "restrict": _restrict,
    "extend": _extend,
    "linear": _linear,
    "outer": _outer,
    "sum": _sum,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "place": _place,
    "concat": _concat,
    "keep": _keep,
}
