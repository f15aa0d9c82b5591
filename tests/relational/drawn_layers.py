"""Layers of every kind, drawn from a seed, and what each computes by plain PyTorch.

A drawn layer is a list of instructions. One interpreter writes it in the language of layers, as an
author would; the other computes it with a tensor per edge, from `index_select`, `index_add` and
`einsum` alone, and knows nothing of the compiler. What they share is the list and no more.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from shorthaul import relational as r
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.compiled_layer import LayerDefinition
from shorthaul.relational.frontend.symbols import WeightSlice
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.ir.dropout_mask import keep_mask
from shorthaul.relational.ir.program import Program
from shorthaul.relational.topology.topology import Topology

Shape = tuple[int, ...]

# Where a value has its rows. Node and target values are one thing to an author, but only a target's may
# come from its edges, and only a node's may be read at an edge's source.
NODE, TARGET, EDGE, WHOLE = "node", "target", "edge", "whole"


@dataclass(frozen=True)
class Instruction:
    """The making of value number `len(so far)` from the values with the numbers `operands`."""

    operation: str
    operands: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    detail: tuple[Any, ...] = ()  # shapes, slopes, directions
    where: str = EDGE
    section: int = 0  # the loop that it stands in

    def __str__(self) -> str:
        made_from = ", ".join([*(f"v{each}" for each in self.operands), *self.weights])
        detail = f" {self.detail}" if self.detail else ""
        return f"{self.section}: {self.operation}({made_from}){detail} per {self.where}"


@dataclass(frozen=True)
class Layer:
    """A drawn layer."""

    seed: int
    features: tuple[tuple[str, Shape], ...]  # of nodes
    details: tuple[tuple[str, Shape], ...]  # of edges
    weights: tuple[tuple[str, str, Shape], ...]  # name, what it has a slice per, shape
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        lines = [f"layer {self.seed}", *(str(each) for each in (*self.features, *self.details))]
        lines += [str(each) for each in self.weights]
        lines += [f"v{number} = {each}" for number, each in enumerate(self.instructions)]
        return "\n".join([*lines, f"return {', '.join(f'v{each}' for each in self.results)}"])

    def definition(self) -> LayerDefinition:
        """The layer in the language."""
        return r.layer(_write_function(self))

    def record(self) -> Program:
        """The program as it is before the first pass."""
        return trace(_write_function(self), {}, {})


# What can be done with a value. Each entry draws the details and operands of one instruction.


@dataclass
class _Draw:
    """A layer in the making: values with their places and shapes."""

    chance: random.Random
    instructions: list[Instruction] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    weights: dict[str, tuple[str, Shape]] = field(default_factory=dict)
    details: dict[str, Shape] = field(default_factory=dict)
    section: int = 0

    def add(self, where: str, shape: Shape, operation: str, *operands: int, **more: Any) -> int:
        self.instructions.append(
            Instruction(operation, operands, where=where, section=self.section, **more)
        )
        self.places.append(where)
        self.shapes.append(shape)
        return len(self.places) - 1

    def weight(self, per: str, shape: Shape) -> str:
        """A weight of this shape: sometimes one that is there already."""
        same = [n for n, have in self.weights.items() if have == (per, shape)]
        if same and self.chance.random() < 0.3:
            return self.chance.choice(same)
        name = f"w{len(self.weights)}"
        self.weights[name] = (per, shape)
        return name

    def pick(self, where: str, recent: float = 0.75) -> int:
        """A value that can be used here, rather a recent one."""
        found = [n for n, place in enumerate(self.places) if place == where]
        return found[-1] if self.chance.random() < recent else self.chance.choice(found)


UNARY = (
    "tanh", "sigmoid", "relu", "elu", "gelu", "silu", "softplus", "absolute", "negative", "exp",
    "log", "sqrt", "square", "cube", "reciprocal", "positive", "shift", "scale", "from_one",
    "sine", "cosine", "at_least",
)  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
WITHIN = ("softmax", "sum", "mean", "max", "min")
PER_EDGE = ("one", "relation", "source_type", "target_type", "relation_source", "relation_target")


def _per(draw: _Draw, where: str) -> str:
    if where == EDGE:
        return draw.chance.choices(PER_EDGE, (4, 4, 1, 1, 1, 1))[0]
    return draw.chance.choice(("one", "type"))


def _unary(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    draw.add(where, draw.shapes[x], draw.chance.choice(UNARY), x)


def _leaky(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    slope = draw.chance.choice((0.0, 0.01, 0.2, 1.5))
    draw.add(where, draw.shapes[x], "leaky_relu", x, detail=(slope,))


def _binary(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    fits = [
        n
        for n, place in enumerate(draw.places)
        if place == where and _broadcast(draw.shapes[n], draw.shapes[x]) is not None
    ]
    y = draw.chance.choice(fits)
    shape = _broadcast(draw.shapes[x], draw.shapes[y])
    assert shape is not None
    operands = (x, y) if draw.chance.random() < 0.5 else (y, x)
    if prod(shape) <= 64:
        draw.add(where, shape, draw.chance.choice(BINARY), *operands)


def _linear(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    shape = draw.shapes[x]
    if not shape:
        return
    width = draw.chance.choice((1, 1, 2, 3, 4, 4, 8, 17))
    heads = shape[:1] if len(shape) > 1 and draw.chance.random() < 0.5 else ()
    weight = draw.weight(_per(draw, where), (*heads, shape[-1], width))
    draw.add(where, (*shape[:-1], width), "linear", x, weights=(weight,))


def _bias(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    shape = draw.shapes[x]
    choices = {shape, shape[-1:], (1,) if shape else ()}
    weight = draw.weight(_per(draw, where), draw.chance.choice(sorted(choices)))
    operation = draw.chance.choice(("add_weight", "multiply_weight", "bound_weight"))
    draw.add(where, shape, operation, x, weights=(weight,))


def _bases(draw: _Draw, where: str) -> None:
    """A weight per relation that is made of a few."""
    x = draw.pick(where)
    shape = draw.shapes[x]
    if len(shape) != 1 or where != EDGE:
        return
    width, count = draw.chance.choice((1, 3, 4)), draw.chance.choice((1, 2, 3))
    bases = draw.weight("one", (count, shape[0] * width))
    shares = draw.weight("relation", (count,))
    draw.add(where, (width,), "bases", x, weights=(shares, bases), detail=(shape[0], width))


def _folded(draw: _Draw, where: str) -> None:
    """A weight that is a function of weights."""
    x = draw.pick(where)
    shape = draw.shapes[x]
    if len(shape) != 1:
        return
    middle, width = draw.chance.choice((1, 2, 5)), draw.chance.choice((1, 3, 4))
    first = draw.weight("relation" if where == EDGE else "one", (shape[0], middle))
    second = draw.weight("one", (middle, width))
    draw.add(where, (width,), "folded", x, weights=(first, second))


def _sliced(draw: _Draw, where: str) -> None:
    """A slice of a weight, reshaped or bounded before it multiplies."""
    x = draw.pick(where)
    shape = draw.shapes[x]
    if len(shape) != 1:
        return
    width = draw.chance.choice((1, 2, 3))
    weight = draw.weight(_per(draw, where), (shape[0] * width,))
    kind = draw.chance.choice(("reshaped", "bounded"))
    draw.add(where, (width,), "sliced", x, weights=(weight,), detail=(kind, shape[0], width))


def _rows(draw: _Draw, where: str) -> None:
    """Each row times a matrix of its own."""
    x, y = draw.pick(where), draw.pick(where, 0.2)
    depth, size = draw.shapes[x][-1:], prod(draw.shapes[y])
    if depth and depth[0] and size % depth[0] == 0 and 0 < size // depth[0] <= 8:
        width = size // depth[0]
        draw.add(where, (*draw.shapes[x][:-1], width), "rows", x, y, detail=(depth[0], width))


def _reshape(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    size = prod(draw.shapes[x])
    choices = [(size,), (1, size), (size, 1), (2, size // 2), (size // 2, 2), (1, 2, size // 2)]
    if size == 1:
        choices.append(())
    shape = draw.chance.choice([each for each in choices if prod(each) == size])
    draw.add(where, shape, "reshape", x, detail=(shape,))


def _total(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    shape = draw.shapes[x]
    if shape:
        axis = draw.chance.randrange(len(shape))
        summed = tuple(1 if each == axis else size for each, size in enumerate(shape))
        draw.add(where, summed, "total", x, detail=(axis,))


def _dot(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    fits = [
        n
        for n, place in enumerate(draw.places)
        if place == where and draw.shapes[n][-1:] == draw.shapes[x][-1:] != ()
        and _broadcast(draw.shapes[n], draw.shapes[x]) is not None
    ]  # fmt: skip
    if fits:
        y = draw.chance.choice(fits)
        shape = _broadcast(draw.shapes[x], draw.shapes[y])
        assert shape is not None
        draw.add(where, (*shape[:-1], 1), "dot", x, y)


def _outer(draw: _Draw, where: str) -> None:
    x, y = draw.pick(where), draw.pick(where, 0.2)
    shapes = draw.shapes[x], draw.shapes[y]
    if len(shapes[0]) == len(shapes[1]) == 1 and prod(shapes[0] + shapes[1]) <= 40:
        draw.add(where, shapes[0] + shapes[1], "outer", x, y)


def _concat(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    shape = draw.shapes[x]
    fits = [
        n
        for n, place in enumerate(draw.places)
        if place == where and shape and draw.shapes[n][:-1] == shape[:-1] and draw.shapes[n]
    ]
    if fits:
        parts = [x, *draw.chance.choices(fits, k=draw.chance.choice((1, 1, 2)))]
        width = sum(draw.shapes[each][-1] for each in parts)
        if prod(shape[:-1]) * width <= 64:
            draw.add(where, (*shape[:-1], width), "concat", *parts)


def _part(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    shape = draw.shapes[x]
    if shape and shape[-1] > 1:
        cut = draw.chance.randrange(1, shape[-1])
        which = draw.chance.randrange(2)
        width = (cut, shape[-1] - cut)[which]
        draw.add(where, (*shape[:-1], width), "part", x, detail=(cut, which))


def _spread(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    shape = (draw.chance.choice((2, 3)), *draw.shapes[x])
    if prod(shape) <= 40:
        draw.add(where, shape, "broadcast", x, detail=(shape,))


def _norm(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    shape = draw.shapes[x]
    if shape and shape[-1] > 1:
        weights = ()
        if draw.chance.random() < 0.5:
            weights = (draw.weight("one", shape[-1:]), draw.weight("one", shape[-1:]))
        draw.add(where, shape, "layer_norm", x, weights=weights)


def _dropout(draw: _Draw, where: str) -> None:
    x = draw.pick(where)
    draw.add(where, draw.shapes[x], "dropout", x, detail=(draw.chance.choice((0.2, 0.5)),))


def _drop_edges(draw: _Draw, where: str) -> None:
    if where == EDGE:
        x = draw.pick(where)
        draw.add(where, draw.shapes[x], "drop_edges", x, detail=(draw.chance.choice((0.2, 0.5)),))


def _within(draw: _Draw, where: str) -> None:
    if where == EDGE:
        x = draw.pick(where)
        group = draw.chance.choice(("target", "relation"))
        kind = draw.chance.choice(WITHIN if group == "relation" else ("softmax",))
        draw.add(where, draw.shapes[x], "within", x, detail=(kind, group))


def _count(draw: _Draw, where: str) -> None:
    if where == EDGE:
        x = draw.pick(where)
        group = draw.chance.choice(("target", "relation"))
        draw.add(where, draw.shapes[x], "count", x, detail=(group,))


def _attention(draw: _Draw, where: str) -> None:
    """Scores of a hidden layer, one per head, with a bias: additive attention and its kin."""
    if where != EDGE:
        return _unary(draw, where)
    x = draw.pick(where)
    if not draw.shapes[x]:
        return None
    heads = draw.chance.choice((1, 1, 2))
    hidden = draw.add(where, draw.shapes[x], draw.chance.choice(UNARY[:7]), x)
    weight = draw.weight(_per(draw, where), (draw.shapes[x][-1], heads))
    score = draw.add(where, (*draw.shapes[x][:-1], heads), "linear", hidden, weights=(weight,))
    if draw.chance.random() < 0.7:
        bias = draw.weight(_per(draw, where), (heads,))
        score = draw.add(where, draw.shapes[score], "add_weight", score, weights=(bias,))
    if draw.chance.random() < 0.5:
        score = draw.add(where, draw.shapes[score], "leaky_relu", score, detail=(0.2,))
    group = draw.chance.choice(("target", "relation"))
    alpha = draw.add(where, draw.shapes[score], "within", score, detail=("softmax", group))
    fits = _broadcast(draw.shapes[alpha], draw.shapes[x])
    if fits is not None and prod(fits) <= 64:
        draw.add(where, fits, "multiply", alpha, x)
    return None


# How often each is drawn.
CHOICES: dict[Callable[[_Draw, str], None], int] = {
    _unary: 8, _leaky: 2, _binary: 8, _linear: 7, _bias: 5, _bases: 1, _folded: 1, _sliced: 1, _rows: 1,
    _reshape: 3, _total: 2, _dot: 2, _outer: 1, _concat: 3, _part: 2, _spread: 1, _norm: 1,
    _dropout: 1, _drop_edges: 1, _within: 3, _count: 1, _attention: 3,
}  # fmt: skip


def draw_layer(seed: int, size: int = 12) -> Layer:
    """A layer with about `size` instructions besides those that read and reduce."""
    chance = random.Random(seed)
    draw = _Draw(chance)
    widths: tuple[Shape, ...] = ((1,), (3,), (4,), (4,), (6,), (2, 3), (16,), (33,), (), (0,))
    features = {f"x{n}": chance.choice(widths) for n in range(chance.choice((1, 1, 2)))}
    if chance.random() < 0.5:
        draw.details = {"detail": chance.choice(widths)}
    for name, shape in features.items():
        draw.add(NODE, shape, "feature", detail=(name,))
    _fill(draw, NODE, chance.choice((0, 0, 1, 3)))
    for _ in range(chance.choice((1, 1, 1, 2))):
        draw.section += 1
        _read_ends(draw)
        _fill(draw, EDGE, chance.randrange(1, size))
        draw.section += 1
        _reduce(draw)
        _fill(draw, TARGET, chance.choice((0, 1, 3)))
    if chance.random() < 0.2:
        draw.section += 1
        _read_ends(draw)
        _fill(draw, EDGE, 3)
    results = [draw.pick(TARGET, 0.9)]
    for where, odds in ((TARGET, 0.2), (EDGE, 0.35), (NODE, 0.15)):
        if chance.random() < odds:
            results.append(draw.pick(where))
    layer = Layer(
        seed,
        tuple(features.items()),
        tuple(draw.details.items()),
        tuple((name, per, shape) for name, (per, shape) in draw.weights.items()),
        tuple(draw.instructions),
        tuple(dict.fromkeys(results)),
    )
    return without_unused(layer)


def _fill(draw: _Draw, where: str, count: int) -> None:
    for _ in range(count):
        draw.chance.choices(tuple(CHOICES), tuple(CHOICES.values()))[0](draw, where)


def _read_ends(draw: _Draw) -> None:
    """Values of an edge's ends and its details, read at the head of a loop over edges."""
    chance = draw.chance
    if draw.details and chance.random() < 0.7:
        draw.add(EDGE, draw.details["detail"], "detail", detail=("detail",))
    nodes = [n for n, place in enumerate(draw.places) if place == NODE]
    targets = [n for n, place in enumerate(draw.places) if place == TARGET]
    for _ in range(chance.choice((0, 1, 1, 2))):
        x = chance.choice([*nodes, *targets, *targets])
        draw.add(EDGE, draw.shapes[x], "at_target", x)
    for _ in range(chance.choice((1, 1, 2))):
        x = chance.choice(nodes)
        draw.add(EDGE, draw.shapes[x], "at_source", x)
    if targets and chance.random() < 0.4:
        x = chance.choice(targets)
        draw.add(EDGE, draw.shapes[x], "over_nodes", x)


def _reduce(draw: _Draw) -> None:
    for _ in range(draw.chance.choice((1, 1, 2, 3))):
        x = draw.pick(EDGE, 0.8)
        kind = draw.chance.choice(("sum", "sum", "sum", "mean", "max", "min"))
        draw.add(TARGET, draw.shapes[x], "reduce", x, detail=(kind,))
    if draw.chance.random() < 0.4:
        x = draw.chance.choice([n for n, place in enumerate(draw.places) if place == NODE])
        draw.add(TARGET, draw.shapes[x], "of_node", x)


def _broadcast(one: Shape, other: Shape) -> Shape | None:
    try:
        return tuple(torch.broadcast_shapes(one, other))
    except RuntimeError:
        return None


def without_unused(layer: Layer) -> Layer:
    """The layer without the instructions, weights and details that no result needs."""
    needed = set(layer.results)
    for number in reversed(range(len(layer.instructions))):
        if number in needed:
            needed.update(layer.instructions[number].operands)
    kept = [n for n in range(len(layer.instructions)) if n in needed]
    new = {old: number for number, old in enumerate(kept)}
    instructions = tuple(
        replace(each, operands=tuple(new[operand] for operand in each.operands))
        for each in (layer.instructions[n] for n in kept)
    )
    weights = {name for each in instructions for name in each.weights}
    read = {each.detail[0] for each in instructions if each.operation in ("feature", "detail")}
    return replace(
        layer,
        features=tuple(each for each in layer.features if each[0] in read) or layer.features[:1],
        details=tuple(each for each in layer.details if each[0] in read),
        weights=tuple(each for each in layer.weights if each[0] in weights),
        instructions=instructions,
        results=tuple(new[each] for each in layer.results),
    )


# In the language.


def _write_function(layer: Layer) -> Callable[..., Any]:
    def drawn(g: Any, **given: Any) -> Any:
        values: list[Any] = []
        sections = sorted({each.section for each in layer.instructions})
        for section in sections:
            mine = [
                (n, each) for n, each in enumerate(layer.instructions) if each.section == section
            ]
            places = {each.where for _, each in mine}
            over = {each.operands[0] for _, each in mine if each.operation == "over_nodes"}
            for n in g.nodes() if over else ():
                for operand in over:
                    setattr(n, f"over{operand}", r.over_nodes(values[operand]))
            if NODE in places:
                for n in g.nodes():
                    _write_section(layer, mine, values, given, n)
            elif TARGET in places:
                for n in g.target_nodes():
                    for e in n.incoming_edges():
                        _write_section(layer, mine, values, given, n, e)
            else:
                for e in g.edges():
                    _write_section(layer, mine, values, given, e, e)
        results = tuple(values[each] for each in layer.results)
        return results if len(results) > 1 else results[0]

    parameters = [inspect.Parameter("g", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    declared: dict[str, Any] = {name: r.NodeFeature(*shape) for name, shape in layer.features}
    declared |= {name: r.EdgeFeature(*shape) for name, shape in layer.details}
    slices = {"one": (), "relation": ("relation",)}
    both = ("relation", "node_type")
    for name, per, shape in layer.weights:
        kind = both if per.startswith("relation_") else slices.get(per, ("node_type",))
        declared[name] = r.Weight(*kind, *shape)
    for name, annotation in declared.items():
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
        )
    drawn.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return drawn


def _write_section(
    layer: Layer, mine: Any, values: list[Any], given: Mapping[str, Any], symbol: Any, e: Any = None
) -> None:
    per = {name: kind for name, kind, _ in layer.weights}
    for number, each in mine:
        made = _write(each, [values[n] for n in each.operands], given, per, symbol, e)
        if each.operation in ("at_source", "at_target"):
            end = e.source if each.operation == "at_source" else e.target
            made = getattr(end, f"v{each.operands[0]}")
        elif each.operation == "over_nodes":  # a value of an earlier loop, under a name of its own
            made = getattr(e.source, f"over{each.operands[0]}")
        elif each.operation == "of_node":
            made = getattr(symbol, f"v{each.operands[0]}")
        if isinstance(made, WeightSlice):
            made = made._as_expression()
        setattr(symbol, f"v{number}", made)
        values.append(getattr(symbol, f"v{number}"))


def _index(weight: Any, per: str, symbol: Any) -> Any:
    if per == "one":
        return weight
    if per == "relation":
        return weight[symbol.relation]
    if per == "type":
        return weight[symbol.type]
    end = symbol.source if per.endswith("source") or per.startswith("source") else symbol.target
    return weight[symbol.relation, end.type] if per.startswith("relation_") else weight[end.type]


def _write(
    each: Instruction, v: list[Any], given: Mapping[str, Any], per: Any, symbol: Any, e: Any
) -> Any:
    w = [
        given[name] if each.operation in ("bases", "folded") else
        _index(given[name], per[name], symbol)
        for name in each.weights
    ]  # fmt: skip
    written = {
        "feature": lambda: getattr(symbol, each.detail[0]),
        "detail": lambda: getattr(symbol, each.detail[0]),
        "at_source": lambda: None,
        "at_target": lambda: None,
        "of_node": lambda: None,
        "over_nodes": lambda: None,
        "negative": lambda: -v[0],
        "exp": lambda: r.exp(-r.absolute(v[0])),
        "log": lambda: r.log(1.0 + v[0] * v[0]),
        "sqrt": lambda: r.sqrt(1.0 + v[0] * v[0]),
        "square": lambda: v[0] ** 2 / 2,
        "cube": lambda: v[0] ** 3 / 4,
        "reciprocal": lambda: 1 / (2 + v[0] * v[0]),
        "positive": lambda: r.positive(v[0]),
        "shift": lambda: v[0] + 0.5,
        "scale": lambda: v[0] * -1.5,
        "from_one": lambda: 1 - v[0],
        "at_least": lambda: r.maximum(v[0], -0.25),
        "maximum": lambda: r.maximum(v[0], v[1]),
        "minimum": lambda: r.minimum(v[0], v[1]),
        "drop_edges": lambda: r.drop_edges(v[0], each.detail[0]),
        "leaky_relu": lambda: r.leaky_relu(v[0], each.detail[0]),
        "add": lambda: v[0] + v[1],
        "subtract": lambda: v[0] - v[1],
        "multiply": lambda: v[0] * v[1],
        "divide": lambda: v[0] / (1 + v[1] * v[1]),
        "linear": lambda: r.linear(v[0], w[0]),
        "add_weight": lambda: v[0] + w[0],
        "multiply_weight": lambda: v[0] * w[0],
        "bound_weight": lambda: v[0] * r.tanh(w[0]),
        "bases": lambda: r.linear(v[0], _of_bases(*w, symbol, *each.detail)),
        "folded": lambda: r.linear(v[0], r.linear(w[0], w[1])),
        "sliced": lambda: r.linear(v[0], _of_slice(w[0], *each.detail)),
        "rows": lambda: r.linear(v[0], v[1].reshape(*each.detail)),
        "reshape": lambda: v[0].reshape(*each.detail[0]),
        "total": lambda: r.total(v[0], *each.detail),
        "dot": lambda: r.dot(v[0], v[1]),
        "outer": lambda: r.outer(v[0], v[1]),
        "concat": lambda: r.concat(*v),
        "part": lambda: v[0].split(each.detail[0], v[0].shape[-1] - each.detail[0])[each.detail[1]],
        "broadcast": lambda: r.broadcast(v[0], *each.detail[0]),
        "layer_norm": lambda: r.layer_norm(v[0], *w),
        "dropout": lambda: r.dropout(v[0], each.detail[0]),
        "within": lambda: _GROUPED[each.detail[0]](v[0], within=each.detail[1]),
        "count": lambda: v[0] / e.count(within=each.detail[0]),
        "reduce": lambda: _GROUPED[each.detail[0]](v[0]),
    }
    if each.operation in written:
        return written[each.operation]()
    return getattr(r, each.operation)(v[0])


_GROUPED = {
    "softmax": r.softmax,
    "sum": r.reduce_sum,
    "mean": r.reduce_mean,
    "max": r.reduce_max,
    "min": r.reduce_min,
}


def _of_bases(shares: Any, bases: Any, symbol: Any, depth: int, width: int) -> Any:
    return r.linear(shares, bases).reshape(depth, width)


def _of_slice(weight: Any, kind: str, depth: int, width: int) -> Any:
    return weight.reshape(depth, width) if kind == "reshaped" else (
        r.tanh(weight).reshape(depth, width)
    )  # fmt: skip


# In plain PyTorch.


def compute(
    layer: Layer,
    graph: RelationalGraph,
    tensors: Mapping[str, torch.Tensor],
    num_targets: int,
    seed: int,
) -> list[torch.Tensor]:
    """The layer's results, with a row per edge for whatever an edge has. `seed` is dropout's."""
    return _Plain(layer, graph, tensors, num_targets, seed).run()


class _Plain:
    def __init__(
        self,
        layer: Layer,
        graph: RelationalGraph,
        tensors: Mapping[str, torch.Tensor],
        num_targets: int,
        seed: int,
    ) -> None:
        self.layer, self.tensors, self.seed = layer, tensors, seed
        self.source, self.target = graph.source.long(), graph.target.long()
        self.relation, self.num_relations = graph.relation.long(), graph.num_relations
        self.edges, self.targets, self.nodes = len(self.source), num_targets, graph.num_nodes
        counts = torch.tensor(graph.nodes_per_type)
        self.types = torch.repeat_interleave(torch.arange(len(counts)), counts)
        self.per = {name: kind for name, kind, _ in layer.weights}
        self.order = Topology.of(graph, num_targets).edge_ids.long()  # which dropout counts in
        self.streams = 0

    def run(self) -> list[torch.Tensor]:
        values: list[torch.Tensor] = []
        for each in self.layer.instructions:
            made = self._compute(each, [values[n] for n in each.operands])
            values.append(made)
        return [values[each] for each in self.layer.results]

    def _slice(self, name: str, where: str) -> torch.Tensor:
        """The weight of every row."""
        weight, per = self.tensors[name], self.per[name]
        if per == "one":
            rows = {EDGE: self.edges, TARGET: self.targets, NODE: self.nodes}[where]
            return weight.unsqueeze(0).expand(rows, *weight.shape)
        if per == "type":
            return weight[self.types[: self.targets] if where == TARGET else self.types]
        if per == "relation":
            return weight[self.relation]
        ends = self.source if per.endswith("source") or per.startswith("source") else self.target
        types = self.types[ends]
        return weight[self.relation, types] if per.startswith("relation_") else weight[types]

    def _compute(self, each: Instruction, v: list[torch.Tensor]) -> torch.Tensor:
        name, detail, where = each.operation, each.detail, each.where
        if name == "feature" or name == "detail":
            return self.tensors[detail[0]]
        if name == "at_source":
            return v[0].index_select(0, self.source)
        if name == "at_target":
            return v[0].index_select(0, self.target)
        if name == "over_nodes":
            missing = v[0].new_zeros(self.nodes - self.targets, *v[0].shape[1:])
            return torch.cat([v[0], missing]).index_select(0, self.source)
        if name == "of_node":
            return v[0][: self.targets]
        if name in ("within", "reduce", "count"):
            return self._group(name, detail, v[0])
        if name in ("bases", "folded"):
            first, second = (self.tensors[one] for one in each.weights)
            if name == "bases":
                whole = (first @ second).reshape(len(first), *detail)[self.relation]
            else:
                whole = first @ second
                whole = whole[self.relation] if where == EDGE else whole.expand(len(v[0]), -1, -1)
            return torch.einsum("ri,rio->ro", v[0], whole)
        w = [self._slice(one, where) for one in each.weights]
        if name == "dropout":
            return v[0] * self._mask(v[0], detail[0], where)
        if name == "drop_edges":
            one = v[0].new_empty(len(v[0]), *(1,) * (v[0].dim() - 1))
            return v[0] * self._mask(one, detail[0], where)
        if name in _PLAIN_UNARY:
            return _PLAIN_UNARY[name](v[0])
        if name in ("linear", "sliced", "rows"):
            return self._multiply(name, detail, v, w)
        if name.endswith("_weight"):
            return _PLAIN_WEIGHT[name](*_align(v[0], w[0]))
        if name in _PLAIN_BINARY:
            return _PLAIN_BINARY[name](*_align(v[0], v[1]))
        return self._arrange(each, v, w)

    def _arrange(
        self, each: Instruction, v: list[torch.Tensor], w: list[torch.Tensor]
    ) -> torch.Tensor:
        x, detail = v[0], each.detail
        if each.operation == "leaky_relu":
            return torch.where(x > 0, x, x * detail[0])
        if each.operation == "reshape":
            return x.reshape(len(x), *detail[0])
        if each.operation == "total":
            return x.sum(detail[0] + 1, keepdim=True)
        if each.operation == "outer":
            return torch.einsum("ri,rj->rij", *v)
        if each.operation == "concat":
            return torch.cat(v, -1)
        if each.operation == "part":
            return x[..., : detail[0]] if detail[1] == 0 else x[..., detail[0] :]
        if each.operation == "broadcast":
            like = x.new_empty(len(x), *detail[0])
            return torch.broadcast_tensors(*_align(x, like))[0]
        assert each.operation == "layer_norm"
        scale, shift = (self.tensors[one] for one in each.weights) if w else (None, None)
        return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)

    def _multiply(
        self, name: str, detail: Any, v: list[torch.Tensor], w: list[torch.Tensor]
    ) -> torch.Tensor:
        x = v[0]
        if name == "rows":
            matrix = v[1].reshape(len(x), *detail)
        elif name == "sliced":
            kind, depth, width = detail
            matrix = (w[0] if kind == "reshaped" else torch.tanh(w[0])).reshape(
                len(w[0]), depth, width
            )
        else:
            matrix = w[0]
        if matrix.dim() == 4:
            return torch.einsum("rh...i,rhio->rh...o", x, matrix)
        return torch.einsum("r...i,rio->r...o", x, matrix)

    def _group(self, name: str, detail: Any, x: torch.Tensor) -> torch.Tensor:
        kind = "count" if name == "count" else detail[0]
        group = "target" if name == "reduce" else detail[-1]
        index, rows = self.target, self.targets
        if group == "relation":
            index, rows = index * self.num_relations + self.relation, rows * self.num_relations
        found = _PLAIN_GROUP[kind](x, index, rows)
        return found if name == "reduce" or kind in ("softmax", "count") else found[index]

    def _mask(self, x: torch.Tensor, probability: float, where: str) -> torch.Tensor:
        self.streams += 1
        width = prod(x.shape[1:])
        made = keep_mask(len(x), width, probability, self.streams, self.seed, x).reshape(x.shape)
        if where != EDGE:
            return made
        mask = torch.empty_like(made)
        mask[self.order] = made
        return mask


def _align(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows first; the dimensions of a row meet at their ends."""
    rank = max(x.dim(), y.dim())
    one, other = (
        each.reshape(len(each), *(1,) * (rank - each.dim()), *each.shape[1:]) for each in (x, y)
    )
    return one, other


def _sum(x: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, index, x)


def _counts(x: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    counts = torch.bincount(index, minlength=rows).to(x.dtype)
    return counts.reshape(-1, *(1,) * (x.dim() - 1))


def _mean(x: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    return _sum(x, index, rows) / _counts(x, index, rows).clamp(min=1)


def _extreme(x: torch.Tensor, index: torch.Tensor, rows: int, kind: str) -> torch.Tensor:
    spread = index.reshape(-1, *(1,) * (x.dim() - 1)).expand_as(x)
    start = x.new_zeros(rows, *x.shape[1:])
    return start.scatter_reduce(0, spread, x, kind, include_self=False)


def _softmax(x: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    highest = _extreme(x.detach(), index, rows, "amax")[index]
    powers = torch.exp(x - highest)
    return powers / _sum(powers, index, rows)[index]


_PLAIN_GROUP: dict[str, Callable[..., torch.Tensor]] = {
    "sum": _sum,
    "mean": _mean,
    "max": lambda x, index, rows: _extreme(x, index, rows, "amax"),
    "min": lambda x, index, rows: _extreme(x, index, rows, "amin"),
    "softmax": _softmax,
    "count": lambda x, index, rows: x / _counts(x, index, rows)[index],
}
_PLAIN_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "elu": torch.nn.functional.elu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "absolute": torch.abs,
    "negative": torch.neg,
    "exp": lambda x: torch.exp(-x.abs()),
    "log": lambda x: torch.log(1 + x * x),
    "sqrt": lambda x: torch.sqrt(1 + x * x),
    "square": lambda x: x * x / 2,
    "cube": lambda x: x * x * x / 4,
    "reciprocal": lambda x: 1 / (2 + x * x),
    "positive": lambda x: (x > 0).to(x.dtype),
    "shift": lambda x: x + 0.5,
    "scale": lambda x: x * -1.5,
    "from_one": lambda x: 1 - x,
    "sine": torch.sin,
    "cosine": torch.cos,
    "at_least": lambda x: torch.maximum(x, torch.full_like(x, -0.25)),
}
_PLAIN_BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": lambda x, y: x / (1 + y * y),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "dot": lambda x, y: (x * y).sum(-1, keepdim=True),
}
_PLAIN_WEIGHT: dict[str, Callable[..., torch.Tensor]] = {
    "add_weight": torch.add,
    "multiply_weight": torch.mul,
    "bound_weight": lambda x, w: x * torch.tanh(w),
}


# Graphs.


def draw_graph(seed: int) -> tuple[RelationalGraph, int]:
    """A graph and how many of its nodes are targets: relations without edges, isolated nodes, repeated
    edges, hubs, one edge, none; two types of nodes; 32 and 64-bit indexes.
    """
    chance = random.Random(seed)
    nodes = chance.choice((0, 1, 2, 5, 9, 9, 20, 20))
    targets = nodes if chance.random() < 0.7 else chance.randint(0, nodes)
    first = chance.randint(0, nodes)
    kinds = chance.choice((1, 2, 5))
    count = chance.choice((0, 1, 2, 10, 40, 40, 40)) if targets else 0
    hub = chance.random() < 0.2
    edges = []
    for _ in range(count):
        source, target = chance.randrange(nodes), chance.randrange(targets)
        edges.append((source, 0 if hub else target, chance.randrange(kinds)))
        if chance.random() < 0.2 and len(edges) < count:
            edges.append(edges[-1])
    columns = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3).unbind(1)
    source, target, relation = columns
    typed = relation * 4 + (source >= first).long() * 2 + (target >= first).long()
    names = [(one, f"{n}", other) for n in range(kinds) for one in "ab" for other in "ab"]
    graph = RelationalGraph.from_edges(
        source,
        target,
        typed,
        relations=names,
        nodes_per_type={"a": first, "b": nodes - first},
        index_dtype=chance.choice((torch.int32, torch.int64)),
    )
    return graph, targets


def draw_tensors(layer: Layer, graph: RelationalGraph, seed: int) -> dict[str, torch.Tensor]:
    """Features and weights in float64, as a user would pass them."""
    generator = torch.Generator().manual_seed(seed)
    types, relations = len(graph.node_types), graph.num_relations
    shapes: dict[str, Shape] = {name: (graph.num_nodes, *s) for name, s in layer.features}
    shapes |= {name: (graph.num_edges, *s) for name, s in layer.details}
    rows = {"one": (), "relation": (relations,)}
    for name, per, shape in layer.weights:
        both = (relations, types) if per.startswith("relation_") else (types,)
        shapes[name] = (*rows.get(per, both), *shape)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
