"""Programs of single operators in every space: a recipe is interpreted inside one author's function, so
it goes through the language itself. Whole layers are drawn by `drawn_layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shorthaul.relational import (
    EdgeFeature,
    NodeFeature,
    Weight,
    absolute,
    concat,
    cosine,
    dot,
    dropout,
    elu,
    exp,
    gelu,
    layer,
    layer_norm,
    leaky_relu,
    log,
    maximum,
    minimum,
    outer,
    positive,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
    relu,
    sigmoid,
    silu,
    sine,
    softmax,
    softplus,
    sqrt,
    tanh,
    total,
)
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.ir.program import Program

Choice = tuple[str, int, int]  # an operation, and which of the values so far it takes


@dataclass(frozen=True)
class Recipe:
    """What a program does, loop by loop."""

    width: int
    on_nodes: tuple[Choice, ...]
    on_edges: tuple[Choice, ...]
    reductions: tuple[Choice, ...]
    on_targets: tuple[Choice, ...]
    more: str  # a second result: "", "node" or "edge"


def _turn(value: Any, _other: Any) -> Any:
    """Split and concat: the first element goes last."""
    if value.shape[-1] < 2:
        return value
    first, rest = value.split(1, value.shape[-1] - 1)
    return concat(rest, first)


def _normalize(value: Any, _other: Any) -> Any:
    return layer_norm(value) if value.shape[-1] else value


# Every operation gives a value as wide as its operands, of a size that a few steps do not blow up.
ANYWHERE: dict[str, Callable[[Any, Any], Any]] = {
    "absolute": lambda a, b: absolute(a),
    "add": lambda a, b: a + b,
    "divide": lambda a, b: a / (1 + b * b),
    "dot": lambda a, b: tanh(dot(a, b)) * a,
    "dropout": lambda a, b: dropout(a, 0.3),
    "elu": lambda a, b: elu(a),
    "exp": lambda a, b: exp(tanh(a)),
    "gelu": lambda a, b: gelu(a),
    "layer_norm": _normalize,
    "leaky_relu": lambda a, b: leaky_relu(a, 0.1),
    "log": lambda a, b: log(1 + a**2),
    "cosine": lambda a, b: cosine(a),
    "maximum": lambda a, b: maximum(a, b),
    "minimum": lambda a, b: minimum(a, minimum(b, 0.3)),
    "multiply": lambda a, b: a * tanh(b),
    "negative": lambda a, b: 0.5 - a,
    "outer": lambda a, b: total(outer(a, tanh(b)), 1).reshape(-1),
    "positive": lambda a, b: positive(a) * b,
    "reciprocal": lambda a, b: 1 / (2 + a * a),
    "relu": lambda a, b: relu(a),
    "sigmoid": lambda a, b: sigmoid(a),
    "silu": lambda a, b: silu(a),
    "sine": lambda a, b: sine(a),
    "softplus": lambda a, b: softplus(a),
    "sqrt": lambda a, b: sqrt(1 + a * a),
    "subtract": lambda a, b: a - b / 2,
    "tanh": lambda a, b: tanh(a),
    "total": lambda a, b: total(a) / 3 + b,
    "turn": _turn,
}
WITH_WEIGHTS = ("linear", "two_linears", "joined", "heads", "vector")
OF_EDGES = (
    "by_relation",
    "by_relation_then_one",
    "relation_vector",
    "softmax",
    "softmax_within",
    "max_within",
    "min_within",
    "sum_within",
    "mean_within",
    "count",
)
OF_NODES = ("by_type", "type_vector")
REDUCTIONS = {"sum": reduce_sum, "mean": reduce_mean, "max": reduce_max, "min": reduce_min}


@layer
def drawn(
    g,
    x: NodeFeature("width"),
    detail: EdgeFeature("width"),
    one: Weight("width", "width"),
    joined: Weight("2*width", "width"),
    heads: Weight("1", "width", "width"),
    vector: Weight("width"),
    by_relation: Weight("relation", "width", "width"),
    relation_vector: Weight("relation", "width"),
    by_type: Weight("node_type", "width", "width"),
    type_vector: Weight("node_type", "width"),
    *,
    recipe: Recipe,
):
    def with_weights(name: str, a: Any, b: Any) -> Any:
        made = {
            "linear": lambda: a @ one,
            "two_linears": lambda: (a @ one) @ one,
            "joined": lambda: concat(a, b) @ joined,
            "heads": lambda: (a.reshape(1, -1) @ heads).reshape(-1),
            "vector": lambda: a * vector,
        }
        return made[name]() / 2

    def of_edges(e: Any, name: str, a: Any) -> Any:
        made = {
            "by_relation": lambda: a @ by_relation[e.relation] / 2,
            "by_relation_then_one": lambda: (a @ by_relation[e.relation]) @ one / 4,
            "relation_vector": lambda: a * relation_vector[e.relation],
            "softmax": lambda: softmax(a),
            "softmax_within": lambda: softmax(a, within="relation"),
            "max_within": lambda: reduce_max(a, within="relation"),
            "min_within": lambda: reduce_min(a, within="relation"),
            "sum_within": lambda: reduce_sum(a, within="relation"),
            "mean_within": lambda: reduce_mean(a, within="relation"),
            "count": lambda: a / e.count(),
        }
        return made[name]()

    def of_nodes(n: Any, name: str, a: Any) -> Any:
        return a @ by_type[n.type] / 2 if name == "by_type" else a + type_vector[n.type]

    def take(symbol: Any, choices: tuple[Choice, ...], values: list[Any]) -> None:
        for name, first, second in choices:
            a, b = values[first % len(values)], values[second % len(values)]
            if name in ANYWHERE:
                values.append(ANYWHERE[name](a, b))
            elif name in WITH_WEIGHTS:
                values.append(with_weights(name, a, b))
            elif name in OF_EDGES:
                values.append(of_edges(symbol, name, a))
            else:
                values.append(of_nodes(symbol, name, a))

    for n in g.nodes():
        values = [n.x]
        take(n, recipe.on_nodes, values)
        n.h = values[-1]
    for e in g.edges():
        values = [e.detail, e.source.x, e.target.x, e.target.h, e.source.h]
        take(e, recipe.on_edges, values)
        e.last = values[-1]
        kept = values
    for n in g.target_nodes():
        values = [n.x, n.h]
        for _ in n.incoming_edges():
            for kind, number, _second in recipe.reductions:
                values.append(REDUCTIONS[kind](kept[-1 - number % len(kept)]))
        take(n, recipe.on_targets, values)
        n.out = values[-1]
    results = {"": n.out, "node": (n.out, n.h), "edge": (n.out, e.last)}
    return results[recipe.more]


def record(recipe: Recipe) -> Program:
    return trace(drawn.function, {"width": recipe.width}, {"recipe": recipe})
