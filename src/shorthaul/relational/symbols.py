"""What an author's function works on while it is recorded: symbols for the graph, nodes and edges, and
expressions for the values they have.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from math import prod
from typing import Any

from shorthaul.errors import LayerLanguageError
from shorthaul.relational.ir import Builder, SourceLine
from shorthaul.relational.spaces import Space, find_way


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


class Expression:
    """A value per node, per edge or per type, while a layer is recorded."""

    __array_priority__ = 1000

    def __init__(self, recorder: Recorder, value: str) -> None:
        self._recorder = recorder
        self._value = value

    @property
    def shape(self) -> tuple[int, ...]:
        """Widths of one row."""
        return self._recorder.make.steps[self._value].shape

    @property
    def _space(self) -> Space:
        return self._recorder.make.steps[self._value].space

    def reshape(self, *shape: int) -> Expression:
        """The same elements with other widths; one may be -1."""
        if -1 in shape:
            known = -prod(shape)
            if known == 0 or prod(self.shape) % known:
                raise self._recorder.fail(
                    f"{self.shape} cannot be reshaped to {shape}", "give widths that fit"
                )
            shape = tuple(prod(self.shape) // known if each == -1 else each for each in shape)
        return self._recorder.add("reshape", self._value, shape=tuple(shape))

    def split(self, *widths: int) -> tuple[Expression, ...]:
        """Parts of the last dimension, of these widths."""
        if sum(widths) != self.shape[-1]:
            raise self._recorder.fail(
                f"parts of {widths} do not make up a width of {self.shape[-1]}",
                "give widths that add up",
            )
        axis, parts, start = len(self.shape) - 1, [], 0
        for width in widths:
            parts.append(
                self._recorder.add("slice", self._value, axis=axis, start=start, stop=start + width)
            )
            start += width
        return tuple(parts)

    def __add__(self, other: Any) -> Expression:
        return combine("add", self, other)

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Expression:
        if isinstance(other, Expression) and (self._space, other._space) == (
            Space.TARGET,
            Space.EDGE,
        ):
            return self + reduce_edges(other, "sum")
        return self + other

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
        return self._recorder.add("reciprocal", self._value) * other

    def __neg__(self) -> Expression:
        return self._recorder.add("negative", self._value)

    def __bool__(self) -> bool:
        raise self._recorder.fail(
            "a value of the graph is not known while the layer is recorded",
            "use an operation on values (relu, leaky_relu) in place of `if`, `and`, `or`",
        )

    def __iter__(self) -> Iterator[Any]:
        raise self._recorder.fail(
            "a value cannot be iterated over", "take parts with `.split(widths...)`"
        )

    def __repr__(self) -> str:
        return self._recorder.make.steps[self._value].text()


class WeightArgument:
    """A weight in the author's function: sliced by a relation or a node type, or used whole."""

    def __init__(self, recorder: Recorder, value: str) -> None:
        self._recorder = recorder
        self._value = value

    def __getitem__(self, index: Any) -> WeightSlice:
        if not isinstance(index, TypeIndex):
            raise self._recorder.fail(
                f"`{self._value}` was indexed with {index!r}",
                "index a weight with e.relation or n.type",
            )
        space = self._recorder.make.steps[self._value].space
        if space is not index.space:
            raise self._recorder.fail(
                f"`{self._value}` has one slice per {space.value}, not per {index.space.value}",
                "declare Weight('relation', ...) or Weight('node_type', ...) to match",
            )
        return WeightSlice(self._recorder, self._value, index)


class WeightSlice:
    """`weight[e.relation]` or `weight[n.type]`."""

    def __init__(self, recorder: Recorder, value: str, index: TypeIndex) -> None:
        self._recorder, self._value, self.index = recorder, value, index

    def values(self) -> Expression:
        """The slice as a value per row, for arithmetic."""
        return self.index.owner.read(self._value, self.index.way)


class TypeIndex:
    """`e.relation` or `n.type`: what a weight is sliced by."""

    def __init__(self, owner: Any, space: Space, way: str) -> None:
        self.owner, self.space, self.way = owner, space, way


class NodeSymbol:
    """All nodes at once, or all targets, or one end of all edges."""

    _recorder: Recorder
    _space: Space
    _end: str

    def __init__(self, recorder: Recorder, space: Space, end: str = "") -> None:
        object.__setattr__(self, "_recorder", recorder)
        object.__setattr__(self, "_space", space)  # NODE or TARGET
        object.__setattr__(self, "_end", end)  # "source" or "target" for an edge's end

    @property
    def type(self) -> TypeIndex:
        """The node's type, to slice weights with."""
        return TypeIndex(self, Space.NODE_TYPE, "type")

    def incoming_edges(self) -> Iterator[EdgeSymbol]:
        """All edges that end in the node."""
        if self._space is not Space.TARGET or self._end:
            raise self._recorder.fail(
                "incoming edges belong to a target", "loop `for n in g.target_nodes()` around it"
            )
        yield from self._recorder_loop("incoming")

    def _recorder_loop(self, kind: str) -> Iterator[EdgeSymbol]:
        self._recorder.loops.append(kind)
        yield EdgeSymbol(self._recorder)
        self._recorder.loops.pop()

    def read(self, value: str, way: str = "") -> Expression:
        """A node's value, seen from where this symbol stands; a weight's, by `way`."""
        recorder = self._recorder
        space = recorder.make.steps[value].space
        if way:
            value = recorder.add("expand", value, to=self._space, way=way)._value
        elif space is Space.NODE and self._space is Space.TARGET:
            value = recorder.add("restrict", value)._value
        elif space is Space.TARGET and self._space is Space.NODE:
            raise recorder.fail(
                "a value of target nodes is not known for other nodes",
                "compute it in `for n in g.nodes()`",
            )
        if self._end:
            return recorder.add("expand", value, to=Space.EDGE, way=self._end)
        return Expression(recorder, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        recorder: Recorder = self._recorder
        if name in recorder.node_values:
            return self.read(recorder.node_values[name])
        if self._space is Space.TARGET and not self._end and "incoming" in recorder.loops:
            return Accumulator(recorder, name)
        known = ", ".join(recorder.node_values) or "none"
        raise recorder.fail(f"nodes have no value `{name}`", f"assign it first; there are {known}")

    def __setattr__(self, name: str, value: Any) -> None:
        if self._end:
            raise self._recorder.fail(
                "the end of an edge cannot be assigned to", "assign in a loop over nodes"
            )
        value = as_expression(value)
        if value._space is not self._space:
            raise self._recorder.fail(
                f"`{name}` is assigned to nodes, but has a value per {value._space.value}",
                "reduce it over the edges: n.out += ..., reduce_mean(...), reduce_max(...)",
            )
        self._recorder.node_values[name] = value._value
        self._recorder.names.setdefault(value._value, name)


class EdgeSymbol:
    """All edges at once."""

    _recorder: Recorder

    def __init__(self, recorder: Recorder) -> None:
        object.__setattr__(self, "_recorder", recorder)

    @property
    def source(self) -> NodeSymbol:
        """The node where the edge begins."""
        return NodeSymbol(self._recorder, Space.NODE, "source")

    @property
    def target(self) -> NodeSymbol:
        """The node where the edge ends."""
        return NodeSymbol(self._recorder, Space.TARGET, "target")

    @property
    def relation(self) -> TypeIndex:
        """The edge's relation, to slice weights with."""
        return TypeIndex(self, Space.RELATION, "relation")

    def count(self, within: str = "target") -> Expression:
        """How many edges come to the same target, or (`within="relation"`) with the same relation."""
        way = group_way(self._recorder, within)
        counted = self._recorder.add("count", of=Space.EDGE, way=way)
        return self._recorder.add("expand", counted._value, to=Space.EDGE, way=way)

    def read(self, value: str, way: str) -> Expression:
        """A weight's slice for every edge."""
        return self._recorder.add("expand", value, to=Space.EDGE, way=way)

    def __getattr__(self, name: str) -> Expression:
        if name.startswith("__"):
            raise AttributeError(name)
        values = self._recorder.edge_values
        if name not in values:
            known = ", ".join(values) or "none"
            raise self._recorder.fail(
                f"edges have no value `{name}`",
                f"assign it first; there are {known}; nodes' values are e.source.{name}",
            )
        return Expression(self._recorder, values[name])

    def __setattr__(self, name: str, value: Any) -> None:
        value = as_expression(value)
        value = spread(value, Space.EDGE)
        self._recorder.edge_values[name] = value._value
        self._recorder.names.setdefault(value._value, name)


class Accumulator:
    """`n.out` before it has a value, inside a loop over incoming edges: only `+=` makes sense."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name

    def __iadd__(self, other: Any) -> Expression:
        return reduce_edges(other, "sum")

    def __getattr__(self, name: str) -> Any:
        raise self._recorder.fail(
            f"nodes have no value `{self._name}`", "assign it before it is read"
        )


class GraphSymbol:
    """The graph that the layer will run on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def nodes(self) -> Iterator[NodeSymbol]:
        """All nodes."""
        yield from self._once("nodes", NodeSymbol(self._recorder, Space.NODE))

    def target_nodes(self) -> Iterator[NodeSymbol]:
        """The nodes that the layer computes: all of a graph, the seeds of a sampled block."""
        yield from self._once("targets", NodeSymbol(self._recorder, Space.TARGET))

    def edges(self) -> Iterator[EdgeSymbol]:
        """All edges."""
        yield from self._once("edges", EdgeSymbol(self._recorder))

    def _once(self, kind: str, symbol: Any) -> Iterator[Any]:
        if self._recorder.loops:
            raise self._recorder.fail(
                "loops over the graph cannot be inside one another",
                "only `for e in n.incoming_edges()` goes inside `for n in g.target_nodes()`",
            )
        self._recorder.loops.append(kind)
        yield symbol
        self._recorder.loops.pop()


def as_expression(value: Any) -> Expression:
    """What an author wrote, as a value; numbers and others are refused."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, WeightSlice):
        return value.values()
    if isinstance(value, WeightArgument):
        return Expression(value._recorder, value._value)
    if isinstance(value, Accumulator):
        raise value._recorder.fail(f"`{value._name}` has no value yet", "assign it first")
    raise LayerLanguageError(
        f"expected a value of the graph, got {type(value).__name__} {value!r}",
        "build it from node features, edge features and weights",
        None,
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
    left = left if isinstance(left, int | float) else as_expression(left)
    right = right if isinstance(right, int | float) else as_expression(right)
    if isinstance(right, int | float):
        recorder = left._recorder
        by = float(right)
        if operation == "divide":
            return recorder.add("scale", left._value, by=1.0 / by)
        if operation == "multiply":
            return recorder.add("scale", left._value, by=by)
        return recorder.add("shift", left._value, by=-by if operation == "subtract" else by)
    space = max(left._space, right._space, key=ordered_spaces)
    left, right = spread(left, space), spread(right, space)
    return left._recorder.add(operation, left._value, right._value)


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
