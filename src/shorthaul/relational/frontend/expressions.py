"""Values while an author's function is recorded: what can be done with them, and how two of them meet.

Whatever an author can write arithmetic with is `Symbolic`. What has a value is an `Expression`; the
symbols that have none (a node, an edge, a feature's name) say what to write in their place.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from math import prod
from typing import Any

from shorthaul.errors import LayerLanguageError
from shorthaul.relational.ir.operations import infer
from shorthaul.relational.ir.program import Builder
from shorthaul.relational.ir.spaces import Space, find_way
from shorthaul.relational.ir.step import SourceLine

FUNCTIONS: set[str] = set()  # by name: `language` enters its own, for errors that name them

_recording: ContextVar[Recorder | None] = ContextVar("recording", default=None)


class Recorder:
    """What one run of an author's function has made so far."""

    def __init__(self, name: str, function_file: str) -> None:
        self.make = Builder(name)
        self.function_file = function_file
        self.node_values: dict[str, str] = {}  # attribute -> value over node or target
        self.edge_values: dict[str, str] = {}
        self.names: dict[str, str] = {}  # value -> what the author calls it
        self.loops: list[str] = []
        self.streams = 0

    def __enter__(self) -> Recorder:
        self._before = _recording.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _recording.reset(self._before)

    def line(self) -> SourceLine | None:
        """The author's line that is running."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.function_file:
            if frame.f_back is None:
                return None
            frame = frame.f_back
        text = linecache.getline(self.function_file, frame.f_lineno).strip()
        short = self.function_file.rpartition("/")[2]
        return SourceLine(short, frame.f_lineno, text, self.make.name)

    def add(self, operation: str, *operands: str, name: str = "", **attributes: Any) -> Expression:
        """Record one operation."""
        made = self.make.add(operation, *operands, name=name, line=self.line(), **attributes)
        return Expression(self, made)

    def fail(self, problem: str, instead: str) -> LayerLanguageError:
        """The error for a construct that the language does not have."""
        return LayerLanguageError(problem, instead, self.line())


def fail(problem: str, instead: str) -> LayerLanguageError:
    """The error for something that belongs to no recorder, with the line of the one at work."""
    recorder = _recording.get()
    return LayerLanguageError(problem, instead, recorder.line() if recorder else None)


_COMPARE = (
    "positive(x - y) is 1 where x is above y; relu, leaky_relu and absolute choose by sign; "
    "reduce_max and reduce_min choose among edges"
)


class Symbolic:
    """Anything that stands for a part of the graph: its arithmetic, and what it refuses."""

    __array_priority__ = 1000
    __hash__ = object.__hash__

    def _as_expression(self) -> Expression:
        raise NotImplementedError

    def __add__(self, other: Any) -> Expression:
        return combine("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Expression:
        return combine("subtract", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return (-self) + other

    def __mul__(self, other: Any) -> Expression:
        return combine("multiply", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        return combine("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        value = self._as_expression()
        return value._recorder.add("reciprocal", value._value) * other

    def __neg__(self) -> Expression:
        value = self._as_expression()
        return value._recorder.add("negative", value._value)

    def __abs__(self) -> Expression:
        value = self._as_expression()
        return value._recorder.add("absolute", value._value)

    def __matmul__(self, other: Any) -> Expression:
        return multiply_matrix(self, other)

    def __pow__(self, power: Any) -> Expression:
        value = self._as_expression()
        if power == 0.5:
            return value._recorder.add("sqrt", value._value)
        if not isinstance(power, int) or not 1 <= power <= 8:
            raise fail(
                f"a power of {power!r}", "whole powers from 1 to 8, sqrt(x), or exp(p * log(x))"
            )
        result = value
        for _ in range(power - 1):
            result = result * value
        return result

    def __bool__(self) -> bool:
        raise fail(
            "a value of the graph is not known while the layer is recorded",
            "use an operation on values (relu, leaky_relu) in place of `if`, `and`, `or`, `while`",
        )

    def __iter__(self) -> Iterator[Any]:
        raise fail("a value cannot be iterated over", "take parts with `.split(widths...)`")

    def __getitem__(self, index: Any) -> Any:
        raise fail(
            "a value cannot be indexed",
            "take parts with `.split(widths...)`; only weights are indexed, by e.relation or n.type",
        )

    def _refuse_comparison(self, _other: Any) -> Any:
        raise fail("values of the graph cannot be compared", _COMPARE)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_comparison

    def _refuse_number(self, *_others: Any) -> Any:
        raise fail(
            "a value of the graph cannot become a number while the layer is recorded",
            "use the language's functions (exp, log, sqrt, ...) on it",
        )

    __float__ = __int__ = __index__ = __len__ = _refuse_number

    def _refuse_operator(self, *_others: Any) -> Any:
        raise fail("the language has + - * / @ and **", "write the value with these")

    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __rpow__ = _refuse_operator
    __and__ = __or__ = __xor__ = __invert__ = _refuse_operator

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        raise _refuse_function("torch", getattr(function, "__name__", str(function)))

    def __array_ufunc__(self, function: Any, *arguments: Any, **named: Any) -> Any:
        raise _refuse_function("numpy", function.__name__)

    def __array__(self, *arguments: Any, **named: Any) -> Any:
        raise _refuse_function("numpy", "array")


def _refuse_function(library: str, name: str) -> LayerLanguageError:
    """What to write in place of another library's function."""
    same = {"abs": "absolute", "cat": "concat", "concatenate": "concat", "matmul": "linear"}
    same |= {"sin": "sine", "cos": "cosine"}
    name = name.removeprefix("__").removesuffix("__")
    ours = same.get(name, name)
    instead = "the functions of shorthaul.relational"
    if not ours.startswith("_") and ours in FUNCTIONS:
        instead = f"shorthaul.relational.{ours}"
    elif ours in ("sum", "max", "min", "mean", "amax", "amin"):
        kind = ours.removeprefix("a")
        instead = f"shorthaul.relational.reduce_{kind} over edges, total(x, axis) within a row"
    return fail(f"{library}'s `{name}` does not work on symbols", f"use {instead}")


class Expression(Symbolic):
    """A value per node, per edge or per type, while a layer is recorded."""

    def __init__(self, recorder: Recorder, value: str) -> None:
        self._recorder = recorder
        self._value = value

    def _as_expression(self) -> Expression:
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Widths of one row."""
        return self._recorder.make.steps[self._value].shape

    @property
    def _space(self) -> Space:
        return self._recorder.make.steps[self._value].space

    def reshape(self, *shape: int) -> Expression:
        """The same elements with other widths; one may be -1."""
        if shape.count(-1) == 1:
            known = -prod(shape)
            if known == 0 or prod(self.shape) % known:
                raise self._recorder.fail(
                    f"{self.shape} cannot be reshaped to {shape}", "give widths that fit"
                )
            shape = tuple(prod(self.shape) // known if each == -1 else each for each in shape)
        if any(each < 0 for each in shape):
            raise self._recorder.fail(f"a shape of {shape}", "give one -1 at most")
        return self._recorder.add("reshape", self._value, shape=tuple(shape))

    def split(self, *widths: int) -> tuple[Expression, ...]:
        """Parts of the last dimension, of these widths."""
        if not self.shape or sum(widths) != self.shape[-1] or min(widths, default=0) < 0:
            raise self._recorder.fail(
                f"parts of {widths} do not make up a row of {self.shape or 'one number'}",
                "give widths that add up to the last one",
            )
        axis, parts, start = len(self.shape) - 1, [], 0
        for width in widths:
            parts.append(
                self._recorder.add("slice", self._value, axis=axis, start=start, stop=start + width)
            )
            start += width
        return tuple(parts)

    def __iadd__(self, other: Any) -> Expression:
        if isinstance(other, Symbolic):
            value = other._as_expression()
            if (self._space, value._space) == (Space.TARGET, Space.EDGE):
                return self + reduce_edges(value, "sum")
        return self + other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._recorder.fail(
            f"a value has no `.{name}`",
            "values have .shape, .reshape(widths...) and .split(widths...); "
            "the rest are functions of shorthaul.relational",
        )

    def __repr__(self) -> str:
        return self._recorder.make.steps[self._value].text()


def as_expression(value: Any) -> Expression:
    """What an author wrote, as a value; numbers and others are refused."""
    if isinstance(value, Symbolic):
        return value._as_expression()
    if hasattr(value, "shape"):  # a tensor or an array
        raise fail(
            f"{type(value).__name__} of {tuple(value.shape)} is no value of the graph",
            "declare it as an argument of the layer: NodeFeature, EdgeFeature or Weight",
        )
    raise fail(
        f"expected a value of the graph, got {type(value).__name__} {value!r}",
        "build it from node features, edge features and weights",
    )


def spread(value: Expression, space: Space) -> Expression:
    """`value` with rows over `space`: read along the way that leads from there."""
    if value._space is space:
        return value
    recorder = value._recorder
    way = find_way(space, value._space)
    if value._space is Space.NODE and space is Space.TARGET:
        return recorder.add("restrict", value._value)
    if way is None or value._space is Space.NODE:
        raise recorder.fail(
            f"a value per {value._space.value} was used where there is one per {space.value}",
            "say which node is meant: e.source.x, e.target.x",
        )
    return recorder.add("expand", value._value, to=space, way=way)


_ORDER = (  # from few rows to many
    Space.ONE,
    Space.RELATION,
    Space.NODE_TYPE,
    Space.RELATION_TYPE,
    Space.NODE,
    Space.TARGET,
    Space.SOURCE_PAIR,
    Space.TARGET_PAIR,
    Space.EDGE,
)


def ordered_spaces(space: Space) -> int:
    """A place in the order in which one value is spread to meet another."""
    return _ORDER.index(space)


def combine(operation: str, left: Any, right: Any) -> Expression:
    """A pointwise operation of two values, or of a value and a number."""
    left = as_expression(left)
    if isinstance(right, int | float):
        return _combine_with_number(operation, left, float(right))
    right = as_expression(right)
    space = max(left._space, right._space, key=ordered_spaces)
    left, right = spread(left, space), spread(right, space)
    return left._recorder.add(operation, left._value, right._value)


def _combine_with_number(operation: str, left: Expression, by: float) -> Expression:
    recorder = left._recorder
    if operation == "divide":
        if by == 0:
            raise recorder.fail("a value was divided by 0", "divide by another number")
        return recorder.add("scale", left._value, by=1.0 / by)
    if operation == "multiply":
        return recorder.add("scale", left._value, by=by)
    if operation in ("maximum", "minimum"):
        level = recorder.add("shift", recorder.add("zero", left._value)._value, by=by)
        return recorder.add(operation, left._value, level._value)
    return recorder.add("shift", left._value, by=-by if operation == "subtract" else by)


def multiply_matrix(x: Any, weight: Any) -> Expression:
    """x times a weight, or times a matrix that the layer made of weights."""
    x = as_expression(x)
    multiply = getattr(weight, "_multiply", None)
    if multiply is not None:  # weight[e.relation]
        product: Expression = multiply(x)
        return product
    matrix = as_expression(weight)
    if not matrix._space.is_small:
        return _multiply_rows(x, matrix)
    way = None if matrix._space is x._space else find_way(x._space, matrix._space)
    if way is None and matrix._space is not x._space:
        raise x._recorder.fail(
            f"a value per {x._space.value} was multiplied by a weight per {matrix._space.value}",
            "slice the weight by what the value has: weight[e.relation], weight[n.type]",
        )
    return x._recorder.add("linear", x._value, matrix._value, way=way, transposed=False)


def _multiply_rows(x: Expression, matrix: Expression) -> Expression:
    """Each row times a matrix of its own: sums of products, as no two rows share one."""
    recorder = x._recorder
    space = max(x._space, matrix._space, key=ordered_spaces)
    x, matrix = spread(x, space), spread(matrix, space)
    steps = (recorder.make.steps[x._value], recorder.make.steps[matrix._value])
    shape, _ = infer("linear", steps, {"way": None, "transposed": False}, recorder.line())
    *heads, depth, width = matrix.shape
    between = (1,) * (len(x.shape) - 1 - len(heads))  # dimensions that share a matrix
    products = x.reshape(*x.shape, 1) * matrix.reshape(*heads, *between, depth, width)
    summed = recorder.add("sum", products._value, axes=(len(x.shape) - 1,))
    return summed.reshape(*shape)


def group_way(recorder: Recorder, within: str) -> str:
    """The way from an edge to what it is grouped by."""
    if within not in ("target", "relation"):
        raise recorder.fail(
            f"within={within!r}", "within is 'target' (all incoming edges) or 'relation'"
        )
    return "target" if within == "target" else "target_pair"


def reduce_edges(value: Any, kind: str, within: str = "target") -> Expression:
    """A reduction over incoming edges; within a relation, as a value of every edge."""
    value = spread(as_expression(value), Space.EDGE)
    recorder = value._recorder
    way = group_way(recorder, within)
    reduced = recorder.add("reduce", value._value, kind=kind, way=way)
    if within == "target":
        return reduced
    return recorder.add("expand", reduced._value, to=Space.EDGE, way=way)
