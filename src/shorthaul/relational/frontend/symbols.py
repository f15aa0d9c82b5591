"""What an author's function is given while it is recorded: symbols for the graph, nodes and edges, and
for the arguments that it declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shorthaul.relational.frontend.expressions import (
    Expression,
    Recorder,
    Symbolic,
    as_expression,
    group_way,
    reduce_edges,
    spread,
)
from shorthaul.relational.ir.spaces import Space


class WeightArgument(Symbolic):
    """A weight in the author's function: sliced by a relation, a node type, or both, or used whole."""

    def __init__(self, recorder: Recorder, value: str) -> None:
        self._recorder = recorder
        self._value = value

    def _as_expression(self) -> Expression:
        return Expression(self._recorder, self._value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Widths of one slice."""
        return self._as_expression().shape

    def reshape(self, *shape: int) -> Expression:
        """The whole weight with other widths."""
        return self._as_expression().reshape(*shape)

    def split(self, *widths: int) -> tuple[Expression, ...]:
        """Parts of the last dimension."""
        return self._as_expression().split(*widths)

    def __getitem__(self, index: Any) -> WeightSlice:
        space = self._recorder.make.steps[self._value].space
        if space is Space.RELATION_TYPE:
            return self._slice_by_both(index)
        if not isinstance(index, TypeIndex):
            raise self._recorder.fail(
                f"`{self._value}` was indexed with {_show(index)}",
                "index a weight with e.relation or n.type",
            )
        if space is not index.space:
            raise self._recorder.fail(
                f"`{self._value}` has one slice per {space.value}, not per {index.space.value}"
                if space is not Space.ONE
                else f"`{self._value}` is one for all and has no slices",
                "declare Weight('relation', ...) or Weight('node_type', ...) to match",
            )
        return WeightSlice(self._recorder, self._value, index)

    def _slice_by_both(self, index: Any) -> WeightSlice:
        """A relation joins two types of nodes, so this is a weight per relation."""
        given = index if isinstance(index, tuple) else (index,)
        spaces = [each.space if isinstance(each, TypeIndex) else None for each in given]
        end = getattr(given[-1].owner, "_end", "") if spaces[-1] is Space.NODE_TYPE else ""
        if spaces != [Space.RELATION, Space.NODE_TYPE] or not end:
            raise self._recorder.fail(
                f"`{self._value}` has one slice per relation and node type of an edge, and was "
                f"indexed with {', '.join(map(_show, given))}",
                f"write {self._value}[e.relation, e.source.type] or [e.relation, e.target.type]",
            )
        chosen = self._recorder.add("expand", self._value, to=Space.RELATION, way=f"and_{end}_type")
        return WeightSlice(self._recorder, chosen._value, given[0])


class WeightSlice(Symbolic):
    """`weight[e.relation]`, `weight[n.type]` or `weight[e.relation, e.source.type]`."""

    def __init__(self, recorder: Recorder, value: str, index: TypeIndex) -> None:
        self._recorder, self._value, self.index = recorder, value, index

    def _as_expression(self) -> Expression:
        return self.index.owner.read(self._value, self.index.way)

    @property
    def shape(self) -> tuple[int, ...]:
        """Widths of one slice."""
        return self._recorder.make.steps[self._value].shape

    def reshape(self, *shape: int) -> WeightSlice:
        """The slice with other widths."""
        return self._again(Expression(self._recorder, self._value).reshape(*shape))

    def split(self, *widths: int) -> tuple[WeightSlice, ...]:
        """Parts of the last dimension."""
        parts = Expression(self._recorder, self._value).split(*widths)
        return tuple(self._again(each) for each in parts)

    def _again(self, whole: Expression) -> WeightSlice:
        """The slice of what was made of the whole weight: never a matrix per row."""
        return WeightSlice(self._recorder, whole._value, self.index)

    def _multiply(self, x: Expression) -> Expression:
        """`x` times the slice of each row, by the way to it: never as a matrix per row."""
        make, add = self._recorder.make, self._recorder.add
        owner, way = self.index.owner, self.index.way
        x = spread(x, owner.rows())
        if way != "type" or x._space is not Space.EDGE:
            return add("linear", x._value, self._value, way=way, transposed=False)
        step = make.steps[x._value]
        if step.operation == "expand" and step["way"] == owner._end:  # once per node, not per edge
            product = add("linear", step.operands[0], self._value, way="type", transposed=False)
            return add("expand", product._value, to=Space.EDGE, way=owner._end)
        chosen = add("expand", self._value, to=Space.RELATION, way=f"{owner._end}_type")
        return add("linear", x._value, chosen._value, way="relation", transposed=False)


class FeatureArgument(Symbolic):
    """A declared feature by its bare name, which is no value: it has one per node or edge."""

    def __init__(self, recorder: Recorder, name: str, kind: str) -> None:
        self._recorder, self._name, self._kind = recorder, name, kind

    def _as_expression(self) -> Expression:
        name = self._name
        where = {
            "node": f"n.{name}, e.source.{name} or e.target.{name}",
            "target": f"n.{name} or e.target.{name}",
        }.get(self._kind, f"e.{name}")
        raise self._recorder.fail(
            f"`{name}` has a value per {self._kind}, and this does not say which",
            f"read it through a symbol: {where}",
        )

    def __getitem__(self, index: Any) -> Any:
        return self._as_expression()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._as_expression()


class TypeIndex(Symbolic):
    """`e.relation` or `n.type`: what a weight is sliced by."""

    def __init__(self, owner: Any, space: Space, way: str) -> None:
        self.owner, self.space, self.way = owner, space, way

    def _as_expression(self) -> Expression:
        name = "e.relation" if self.way == "relation" else "n.type"
        raise self.owner._recorder.fail(
            f"{name} is no number",
            f"slice a weight with it: declare Weight({self.space.value.replace(' ', '_')!r}, ...) "
            f"and write weight[{name}]",
        )


class NodeSymbol(Symbolic):
    """All nodes at once, or all targets, or one end of all edges."""

    _recorder: Recorder
    _space: Space
    _end: str

    def __init__(self, recorder: Recorder, space: Space, end: str = "") -> None:
        object.__setattr__(self, "_recorder", recorder)
        object.__setattr__(self, "_space", space)  # NODE or TARGET
        object.__setattr__(self, "_end", end)  # "source" or "target" for an edge's end

    def _as_expression(self) -> Expression:
        name = f"e.{self._end}" if self._end else "n"
        raise self._recorder.fail(
            f"{name} is a node, not a value", f"read one of its values: {name}.<name>"
        )

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
        yield from _loop_once(self._recorder, "incoming", EdgeSymbol(self._recorder))

    def rows(self) -> Space:
        """Where values that are read through this symbol have their rows."""
        return Space.EDGE if self._end else self._space

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
                "compute it in `for n in g.nodes()`; or end the loop over targets with "
                "n.total = over_nodes(n.total)",
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
        more = ""
        if self._space is Space.TARGET and not self._end:
            more = f"; a sum `n.{name} += ...` belongs inside `for e in n.incoming_edges()`"
        raise recorder.fail(
            f"nodes have no value `{name}`", f"assign it first; there are {known}{more}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if self._end:
            raise self._recorder.fail(
                "the end of an edge cannot be assigned to", "assign in a loop over nodes"
            )
        if isinstance(value, int | float):
            raise self._recorder.fail(
                f"`{name}` is assigned the number {value}",
                f"leave the line out: `n.{name} += ...` over edges begins at 0",
            )
        value = as_expression(value)
        if value._space in (Space.ONE, Space.NODE_TYPE):
            value = spread(value, self._space)
        is_known = value._space is Space.NODE and self._space is Space.TARGET  # by `over_nodes`
        if value._space is not self._space and not is_known:
            raise self._recorder.fail(
                f"`{name}` is assigned to {_plural(self._space)}, but has a value per "
                f"{value._space.value}",
                "reduce it over the edges: n.out += ..., reduce_mean(...), reduce_max(...)"
                if value._space is Space.EDGE
                else "assign it in a loop over the nodes that it belongs to",
            )
        self._recorder.node_values[name] = value._value
        self._recorder.names.setdefault(value._value, name)


class EdgeSymbol(Symbolic):
    """All edges at once."""

    _recorder: Recorder

    def __init__(self, recorder: Recorder) -> None:
        object.__setattr__(self, "_recorder", recorder)

    def _as_expression(self) -> Expression:
        raise self._recorder.fail(
            "e is an edge, not a value", "read one of its values: e.<name>, e.source.<name>"
        )

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

    def rows(self) -> Space:
        """Where values that are read through this symbol have their rows."""
        return Space.EDGE

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
        if name in ("source", "target", "relation"):
            raise self._recorder.fail(
                f"e.{name} is what the edge is and cannot be assigned to",
                "give the value another name",
            )
        value = spread(as_expression(value), Space.EDGE)
        self._recorder.edge_values[name] = value._value
        self._recorder.names.setdefault(value._value, name)


class Accumulator(Symbolic):
    """`n.out` before it has a value, inside a loop over incoming edges: only `+=` makes sense."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name

    def _as_expression(self) -> Expression:
        raise self._recorder.fail(
            f"nodes have no value `{self._name}`",
            f"assign it before it is read; a sum is `n.{self._name} += ...`",
        )

    def __iadd__(self, other: Any) -> Expression:
        return reduce_edges(other, "sum")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._as_expression()


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
        yield from _loop_once(self._recorder, kind, symbol)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._recorder.fail(
            f"the graph has no `{name}`",
            "loop over g.nodes(), g.target_nodes() or g.edges(), and n.incoming_edges() inside",
        )


def _loop_once(recorder: Recorder, kind: str, symbol: Any) -> Iterator[Any]:
    recorder.loops.append(kind)
    try:
        yield symbol
    finally:  # also after `break`
        recorder.loops.pop()


def _plural(space: Space) -> str:
    return "targets" if space is Space.TARGET else "nodes"


def _show(index: Any) -> str:
    return type(index).__name__ if isinstance(index, Symbolic) else repr(index)
