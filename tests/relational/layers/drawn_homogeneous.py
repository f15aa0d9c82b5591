"""GAT, GraphConv, GIN, GCN and the graph transformer, drawn by number as `drawn_layers` draws the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tests.relational.layers import drawn_layers
from tests.relational.layers.drawn_layers import Case, Draw, Tensors


def _draw_call(
    draw: Draw,
    more: Callable[[int, int], Tensors],
    call: Callable[[Any, Any, Any, Tensors], Any],
    *,
    forms: bool = True,
    is_apart: bool = False,
    without_targets: bool = False,
) -> tuple[Any, Tensors, Any, Any, str, dict[str, Any]]:
    """(widths, features, PyG's call, ours, form, facts); `more(edges, nodes)` are other features."""
    if is_apart:
        widths: Any = (draw.pick(1, 3), draw.pick(1, 4))
        counts = draw.randint(1, 9), draw.randint(1, 9)
        edges = draw.edges(*counts)
        floats = {"source": draw.tensor(counts[0], widths[0])}
        if not without_targets or draw.random() < 0.8:
            floats["target"] = draw.tensor(counts[1], widths[1])
        floats |= more(edges.shape[1], min(counts))

        def call_apart(layer: Any, x: Tensors) -> Any:
            given = dict(x) | ({} if "target" in x or not without_targets else {"size": counts})
            return call(layer, (x["source"], x.get("target")), edges, given)

        facts = {"nodes": counts, "edges": edges.shape[1]}
        return widths, floats, call_apart, call_apart, "apart", facts
    width, count = draw.pick(1, 3, 8), draw.randint(1, 12)
    edges = draw.edges(count, count)
    form, graph, block = "edge_index", edges, None
    if forms:
        form, graph, edges, block = drawn_layers._draw_form(draw, edges, count)
    floats = {"x": draw.tensor(count if block is None else block.num_sources, width)}
    floats |= more(edges.shape[1], count)

    def call_theirs(layer: Any, x: Tensors) -> Any:
        value = x["x"]
        pair = value if block is None else (value, value[: block.num_targets])
        return call(layer, pair, edges, x)

    facts = {"nodes": count, "edges": edges.shape[1]}
    return (
        width, floats, call_theirs, lambda layer, x: call(layer, x["x"], graph, x), form, facts,
    )  # fmt: skip


def _draw_features(draw: Draw, edge_dim: int | None) -> Callable[[int, int], Tensors]:
    def make(edges: int, _nodes: int) -> Tensors:
        if edge_dim is None:
            return {}
        is_flat = draw.random() < 0.2 and edge_dim == 1
        return {"edge_attr": draw.tensor(*((edges,) if is_flat else (edges, edge_dim)))}

    return make


def draw_gat(draw: Draw) -> Case:
    heads, out, edge_dim = draw.pick(1, 2, 3), draw.pick(1, 2, 5), draw.pick(None, 1, 3)
    options = {"heads": heads, "edge_dim": edge_dim} | draw.options(
        concat=(False,),
        negative_slope=(0.0, 0.1, 0.5),
        dropout=(0.4,),
        add_self_loops=(False, False, True),
        fill_value=("mean", "add", "min", "max", "mul", 0.5),
        bias=(False,),
        residual=(True,),
    )
    more = {"return_attention_weights": True} if draw.random() < 0.3 else {}

    def call(layer: Any, x: Any, edges: Any, given: Tensors) -> Any:
        return layer(x, edges, given.get("edge_attr"), **more)

    is_apart = draw.random() < 0.4
    if is_apart and edge_dim is not None:
        options["add_self_loops"] = False  # PyG raises where targets are more than sources
    width, *rest = _draw_call(draw, _draw_features(draw, edge_dim), call, is_apart=is_apart)
    if not is_apart and draw.random() < 0.3:
        width = (width, width)  # apart parameters on one set of nodes
    return Case("GATConv", (width, out), options, *rest)


def draw_transformer(draw: Draw) -> Case:
    heads, out, edge_dim = draw.pick(1, 2, 3), draw.pick(1, 2, 5), draw.pick(None, 1, 3)
    options = {"heads": heads, "edge_dim": edge_dim} | draw.options(
        concat=(False,), beta=(True,), dropout=(0.4,), bias=(False,), root_weight=(False,)
    )
    more = {"return_attention_weights": draw.pick(True, False)} if draw.random() < 0.3 else {}

    def make(edges: int, _nodes: int) -> Tensors:
        return {} if edge_dim is None else {"edge_attr": draw.tensor(edges, edge_dim)}

    def call(layer: Any, x: Any, edges: Any, given: Tensors) -> Any:
        return layer(x, edges, given.get("edge_attr"), **more)

    width, *rest = _draw_call(draw, make, call, is_apart=draw.random() < 0.4)
    return Case("TransformerConv", (width, out), options, *rest)


def _draw_weight(draw: Draw, *, positive: bool) -> Callable[[int, int], Tensors]:
    is_weighted = draw.random() < 0.6

    def make(edges: int, _nodes: int) -> Tensors:
        weight = draw.tensor(*draw.pick((edges,), (edges, 1)))
        return {"weight": weight.abs() + 0.1 if positive else weight} if is_weighted else {}

    return make


def draw_graph_conv(draw: Draw) -> Case:
    options = draw.options(aggr=("add", "mean", "max", "min"), bias=(False,))

    def call(layer: Any, x: Any, edges: Any, given: Tensors) -> Any:
        return layer(x, edges, given.get("weight"), given.get("size"))

    width, *rest = _draw_call(
        draw, _draw_weight(draw, positive=False), call,
        is_apart=draw.random() < 0.4, without_targets=True,
    )  # fmt: skip
    return Case("GraphConv", (width, draw.pick(1, 2, 5)), options, *rest)


def draw_gcn(draw: Draw) -> Case:
    options = draw.options(
        improved=(True,), add_self_loops=(False,), normalize=(False,), bias=(False,),
        aggr=("add", "mean", "max", "min"),
    )  # fmt: skip
    if not options.get("normalize", True):
        options.pop("add_self_loops", None)

    def make(edges: int, nodes: int) -> Tensors:
        weight = _draw_weight(draw, positive=True)(edges, nodes)
        return {name: value.flatten() for name, value in weight.items()}

    def call(layer: Any, x: Any, edges: Any, given: Tensors) -> Any:
        return layer(x, edges, given.get("weight"))

    width, *rest = _draw_call(draw, make, call, forms=False)
    return Case("GCNConv", (width, draw.pick(1, 2, 5)), options, *rest)


def draw_gin(draw: Draw) -> Case:
    options = draw.options(eps=(0.0, 0.5), train_eps=(True,), aggr=("add", "mean", "max", "min"))

    def call(layer: Any, x: Any, edges: Any, given: Tensors) -> Any:
        return layer(x, edges, given.get("size"))

    is_apart = draw.random() < 0.4
    width, floats, *rest = _draw_call(
        draw, lambda edges, nodes: {}, call, is_apart=is_apart, without_targets=True
    )
    if is_apart:  # both ends have one width
        width = width[0]
        if "target" in floats:
            floats["target"] = draw.tensor(len(floats["target"]), width)
    out = draw.pick(1, 3)
    parts = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, out))
    return Case("GINConv", (draw.pick(nn.Linear(width, out), parts),), options, floats, *rest)


DRAWERS = {
    **drawn_layers.DRAWERS,
    "gat": draw_gat,
    "transformer": draw_transformer,
    "graph_conv": draw_graph_conv,
    "gcn": draw_gcn,
    "gin": draw_gin,
}


def draw_case(name: str, number: int) -> Case:
    """Case `number` of the layer `name`."""
    return DRAWERS[name](Draw(f"{name} {number}"))
