"""Layers of PyG's and of ours with the same options and weights, drawn by number: every option that we
take, on graphs that are empty, tiny, with hubs, with isolated nodes, with loops and repeated edges.

A number always gives the same case. What is drawn is PyG's alone; ours is made from it, by its
constructor or by `accelerate`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import nn

from shorthaul import relational
from shorthaul.graphs import NeighborSampler, RelationalGraph

Tensors = dict[str, torch.Tensor]


@dataclass
class Case:
    """One layer, and what it is called with."""

    kind: str  # PyG's class
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    floats: Tensors  # features, float64; all of them take gradients
    call: Callable[[Any, Tensors], Any]  # PyG's: a layer and its features
    call_ours: Callable[[Any, Tensors], Any]
    form: str = "edge_index"  # how ours is given the graph
    facts: dict[str, Any] = field(default_factory=dict)  # of the graph, for messages
    size: float = 0.7  # of the weights

    def describe(self) -> str:
        """What to write down of a case that fails."""
        return f"{self.kind}{self.arguments} {self.options} {self.form} {self.facts}"

    def make_theirs(self, seed: int) -> nn.Module:
        """PyG's layer in float64, its weights drawn, none zero; they are numbers of float32."""
        module = getattr(pyg, self.kind)(*self.arguments, **self.options).double().eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for each in module.parameters():
                each.copy_(torch.randn(each.shape, generator=generator) * self.size)
        return module

    def make_ours(self, theirs: nn.Module) -> nn.Module:
        """Our layer of that name with the weights of theirs."""
        kind = getattr(relational, self.kind.removeprefix("Fast"))
        module = kind(*self.arguments, **self.options).to(next(theirs.parameters()).dtype).eval()
        module.load_state_dict(theirs.state_dict())
        return module


class Draw(random.Random):
    """Choices, and tensors that are exact in float32."""

    def tensor(self, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.getrandbits(32))
        return torch.randn(shape, generator=generator).double()

    def pick(self, *choices: Any) -> Any:
        return self.choice(choices)

    def options(self, **choices: tuple[Any, ...]) -> dict[str, Any]:
        """Some of these options, each with one of its values; others keep their defaults."""
        return {name: self.choice(each) for name, each in choices.items() if self.random() < 0.6}

    def edges(self, num_sources: int, num_targets: int) -> torch.Tensor:
        """(2, edges): none, one, few or many, evenly, to a hub, from a hub, or repeated."""
        count = self.choice((0, 1, 5, 30, 150)) if num_sources and num_targets else 0
        shape = self.choice(("even", "even", "hub", "fan", "repeated"))
        generator = torch.Generator().manual_seed(self.getrandbits(32))
        source = torch.randint(max(num_sources, 1), (count,), generator=generator)
        target = torch.randint(max(num_targets, 1), (count,), generator=generator)
        if shape == "hub":
            target[count // 8 :] = num_targets // 2
        if shape == "fan":
            source[count // 8 :] = num_sources // 2
        if shape == "repeated":
            first = torch.arange(count) % (count // 2 + 1)
            source, target = source[first], target[first]
        return torch.stack([source, target])


def _facts(edges: torch.Tensor, *counts: int) -> dict[str, Any]:
    return {"nodes": counts, "edges": edges.shape[1]}


def _draw_form(draw: Draw, edges: torch.Tensor, count: int) -> tuple[str, Any, torch.Tensor, Any]:
    """How ours is given the edges of one set of nodes: (form, the graph, edges for PyG, the block)."""
    form = draw.pick("edge_index", "edge_index", "graph", "block")
    graph = RelationalGraph.from_edge_index(edges, num_nodes=count)
    if form == "graph":
        return form, graph, edges, None
    if form == "block":
        seeds = draw.sample(range(count), draw.randint(1, count))
        block = NeighborSampler(graph, [draw.pick(2, -1)], seed=1).sample(seeds).blocks[0]
        return form, block, block.edge_index(), block
    return form, edges, edges, None


def draw_sage(draw: Draw) -> Case:
    out = draw.pick(1, 2, 5)
    options = draw.options(
        aggr=("mean", "add", "sum", "max"),
        normalize=(True,),
        root_weight=(False,),
        project=(True,),
        bias=(False,),
    )
    if draw.random() < 0.4:
        widths = draw.pick(1, 3), draw.pick(1, 4)
        counts = draw.randint(1, 9), draw.randint(1, 9)
        edges = draw.edges(*counts)
        floats = {"source": draw.tensor(counts[0], widths[0])}
        size = counts if draw.random() < 0.5 else None
        if draw.random() < 0.7 or not size:
            floats["target"] = draw.tensor(counts[1], widths[1])

        def call(layer: Any, x: Tensors) -> Any:
            return layer((x["source"], x.get("target")), edges, size)

        return Case(
            "SAGEConv", (widths, out), options, floats, call, call, facts=_facts(edges, *counts)
        )
    width, count = draw.pick(1, 3, 8), draw.randint(1, 12)
    form, graph, edges, block = _draw_form(draw, draw.edges(count, count), count)
    floats = {"x": draw.tensor(count if block is None else block.num_sources, width)}

    def call_theirs(layer: Any, x: Tensors) -> Any:
        value = x["x"]
        return layer(value if block is None else (value, value[: block.num_targets]), edges)

    return Case(
        "SAGEConv", (width, out), options, floats, call_theirs, lambda layer, x: layer(x["x"], graph),
        form, _facts(edges, count),
    )  # fmt: skip


def draw_gatv2(draw: Draw) -> Case:
    heads, out, edge_dim = draw.pick(1, 2, 3), draw.pick(1, 2, 5), draw.pick(None, 1, 3)
    options = {"heads": heads, "edge_dim": edge_dim} | draw.options(
        concat=(False,),
        negative_slope=(0.0, 0.1, 0.5),
        dropout=(0.4,),
        add_self_loops=(False, False, True),
        fill_value=("mean", "add", "min", "max", "mul", 0.5, torch.randn(edge_dim or 1).double()),
        bias=(False,),
        residual=(True,),
    )
    fill = options.get("fill_value")
    if edge_dim is None and isinstance(fill, torch.Tensor):
        del options["fill_value"]
    returns = draw.random() < 0.3
    more = {"return_attention_weights": True} if returns else {}

    def features(count: int) -> Tensors:
        if edge_dim is None:
            return {}
        return {
            "edge_attr": draw.tensor(
                *((count,) if draw.random() < 0.2 and edge_dim == 1 else (count, edge_dim))
            )
        }

    if draw.random() < 0.4:
        widths = draw.pick(1, 3), draw.pick(1, 4)
        counts = draw.randint(1, 9), draw.randint(1, 9)
        if edge_dim is not None and counts[0] < counts[1]:
            options["add_self_loops"] = (
                False  # PyG raises: it fills loops of all targets, and has few
            )
        edges = draw.edges(*counts)
        floats = {
            "source": draw.tensor(counts[0], widths[0]),
            "target": draw.tensor(counts[1], widths[1]),
        }
        floats |= features(edges.shape[1])

        def call(layer: Any, x: Tensors) -> Any:
            return layer((x["source"], x["target"]), edges, x.get("edge_attr"), **more)

        return Case(
            "GATv2Conv", (widths, out), options, floats, call, call, facts=_facts(edges, *counts)
        )
    if draw.random() < 0.4:
        options["share_weights"] = True
    width, count = draw.pick(1, 3, 8), draw.randint(1, 12)
    form, graph, edges, block = _draw_form(draw, draw.edges(count, count), count)
    floats = {"x": draw.tensor(count if block is None else block.num_sources, width)}
    floats |= features(edges.shape[1])

    def call_theirs(layer: Any, x: Tensors) -> Any:
        value = x["x"]
        pair = value if block is None else (value, value[: block.num_targets])
        return layer(pair, edges, x.get("edge_attr"), **more)

    return Case(
        "GATv2Conv", (width, out), options, floats, call_theirs,
        lambda layer, x: layer(x["x"], graph, x.get("edge_attr"), **more), form, _facts(edges, count),
    )  # fmt: skip


def _draw_relations(draw: Draw, count: int, relations: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    most = draw.pick(relations, relations, 1)  # one relation may have all edges
    return torch.randint(most, (count,), generator=generator)


def _draw_typed_form(
    draw: Draw, edges: torch.Tensor, kinds: torch.Tensor, count: int, relations: int
) -> tuple[str, tuple[Any, ...], torch.Tensor, torch.Tensor, Any]:
    """As `_draw_form`, with relations: (form, ours' graph, PyG's edges, PyG's relations, block)."""
    form = draw.pick("edge_index", "edge_index", "graph", "block")
    graph = RelationalGraph.from_edge_index(edges, kinds, num_nodes=count, num_relations=relations)
    if form == "graph":
        return form, (graph,), edges, kinds, None
    if form == "block":
        seeds = draw.sample(range(count), draw.randint(1, count))
        block = NeighborSampler(graph, [draw.pick(2, -1)], seed=1).sample(seeds).blocks[0]
        return form, (block,), block.edge_index(), block.relations.long(), block
    return form, (edges, kinds), edges, kinds, None


def draw_rgcn(draw: Draw) -> Case:
    relations, is_fast = draw.randint(1, 5), draw.random() < 0.4
    options = draw.options(
        aggr=("mean", "add") if is_fast else ("mean", "add", "sum", "max"),
        root_weight=(False,),
        bias=(False,),
    )
    scheme, width, out = draw.pick("", "bases", "blocks"), draw.pick(1, 4, 8), draw.pick(1, 2, 6)
    if scheme == "bases":
        options["num_bases"] = draw.randint(1, 4)
    if scheme == "blocks":
        blocks = draw.pick(1, 2)
        options["num_blocks"] = blocks
        width, out = width * blocks, out * blocks
    what = draw.pick("features", "features", "features", "apart", "none", "numbers")
    if scheme == "blocks" and what in ("none", "numbers"):
        what = "features"
    # PyG's FastRGCNConv takes the place of a node among the given numbers for its number.
    kind = "FastRGCNConv" if is_fast and what != "numbers" else "RGCNConv"
    arguments = width, out, relations
    if what == "apart":
        counts = draw.randint(1, 9), draw.randint(1, 9)
        edges = draw.edges(*counts)
        kinds = _draw_relations(draw, edges.shape[1], relations)
        floats = {"source": draw.tensor(counts[0], width), "target": draw.tensor(counts[1], width)}

        def call(layer: Any, x: Tensors) -> Any:
            return layer((x["source"], x["target"]), edges, kinds)

        return Case(kind, arguments, options, floats, call, call, "apart", _facts(edges, *counts))
    if what in ("none", "numbers"):
        count = width if what == "none" else draw.randint(1, 12)
        generator = torch.Generator().manual_seed(draw.getrandbits(32))
        numbers = None if what == "none" else torch.randint(width, (count,), generator=generator)
        edges = draw.edges(count, count)
        kinds = _draw_relations(draw, edges.shape[1], relations)

        def call_numbers(layer: Any, x: Tensors) -> Any:
            return layer(numbers, edges, kinds)

        return Case(
            kind, arguments, options, {}, call_numbers, call_numbers, what, _facts(edges, count)
        )
    count = draw.randint(1, 12)
    edges = draw.edges(count, count)
    kinds = _draw_relations(draw, edges.shape[1], relations)
    form, graph, edges, kinds, block = _draw_typed_form(draw, edges, kinds, count, relations)
    floats = {"x": draw.tensor(count if block is None else block.num_sources, width)}

    def call_theirs(layer: Any, x: Tensors) -> Any:
        value = x["x"]
        return layer(value if block is None else (value, value[: block.num_targets]), edges, kinds)

    return Case(
        kind, arguments, options, floats, call_theirs, lambda layer, x: layer(x["x"], *graph), form,
        _facts(edges, count),
    )  # fmt: skip


def draw_rgat(draw: Draw) -> Case:
    relations, edge_dim, heads = draw.randint(1, 4), draw.pick(None, 1, 3), draw.pick(1, 2, 3)
    mode = draw.pick("additive-self-attention", "multiplicative-self-attention")
    options = {
        "heads": heads,
        "edge_dim": edge_dim,
        "attention_mode": mode,
        "dim": draw.pick(1, 2, 3) if mode.startswith("multiplicative") else 1,
        "mod": draw.pick(None, "additive", "scaled", "f-additive", "f-scaled"),
    }
    options |= draw.options(
        attention_mechanism=("within-relation",),
        concat=(False,),
        negative_slope=(0.0, 0.1, 0.5),
        bias=(False,),
    )
    if options["mod"] is None and draw.random() < 0.3:
        options["dropout"] = 0.4
    scheme, width, out = draw.pick("", "bases", "blocks"), draw.pick(1, 4, 8), draw.pick(1, 2, 6)
    if scheme == "bases":
        options["num_bases"] = draw.randint(1, 4)
    if scheme == "blocks":
        blocks = draw.pick(1, 2)
        options["num_blocks"] = blocks
        width, out = width * blocks, out * blocks
    # PyG adds nothing to shares that became zero, which size tells from others by chance.
    weights = 0.2 if options["mod"] == "f-additive" else 0.7
    more = draw.pick({}, {}, {"return_attention_weights": draw.pick(True, False)})

    def draw_features(count: int) -> Tensors:
        is_flat = edge_dim == 1 and draw.random() < 0.3
        shape = (count,) if is_flat else (count, edge_dim)
        return {} if edge_dim is None else {"edge_attr": draw.tensor(*shape)}

    if draw.random() < 0.25:
        counts = draw.randint(1, 9), draw.randint(1, 9)
        edges = draw.edges(*counts)
        kinds = _draw_relations(draw, edges.shape[1], relations)
        floats = {"source": draw.tensor(counts[0], width), "target": draw.tensor(counts[1], width)}
        floats |= draw_features(edges.shape[1])

        def call(layer: Any, x: Tensors) -> Any:
            pair = x["source"], x["target"]
            return layer(pair, edges, kinds, x.get("edge_attr"), size=counts, **more)

        return Case(
            "RGATConv", (width, out, relations), options, floats, call, call, "apart",
            _facts(edges, *counts), weights,
        )  # fmt: skip
    count = draw.randint(1, 12)
    edges = draw.edges(count, count)
    kinds = _draw_relations(draw, edges.shape[1], relations)
    form, graph, edges, kinds, block = _draw_typed_form(draw, edges, kinds, count, relations)
    floats = {"x": draw.tensor(count if block is None else block.num_sources, width)}
    floats |= draw_features(edges.shape[1])

    def call_theirs(layer: Any, x: Tensors) -> Any:
        value = x["x"]
        pair = value if block is None else (value, value[: block.num_targets])
        return layer(pair, edges, kinds, x.get("edge_attr"), **more)

    return Case(
        "RGATConv", (width, out, relations), options, floats, call_theirs,
        lambda layer, x: layer(x["x"], *graph, edge_attr=x.get("edge_attr"), **more), form,
        _facts(edges, count), weights,
    )  # fmt: skip


def _draw_types(draw: Draw) -> tuple[Any, dict[str, int], dict[Any, torch.Tensor]]:
    """Metadata, nodes per type, and edges of some of the relations, in any order."""
    names = "abc"[: draw.randint(1, 3)]
    ends = [(one, other) for one in names for other in names]
    chosen = [draw.choice(ends) for _ in range(draw.randint(1, 4))]
    types = [(one, f"r{number}", other) for number, (one, other) in enumerate(chosen)]
    counts = {name: draw.randint(1, 9) for name in names}
    given = draw.sample(types, draw.randint(1, len(types)) if draw.random() < 0.4 else len(types))
    edges = {each: draw.edges(counts[each[0]], counts[each[2]]) for each in given}
    return (list(names), types), counts, edges


def _in_order(metadata: Any, edges: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
    """PyG's HGTConv mixes relations up unless they come in the order in which it was told them."""
    return {each: edges[each] for each in metadata[1] if each in edges}


def _draw_typed(draw: Draw, kind: str, options: dict[str, Any]) -> Case:
    metadata, counts, edges = _draw_types(draw)
    heads = options.get("heads", 1)
    out = heads * draw.pick(1, 2, 4)
    widths: Any = {name: draw.pick(1, 4, out) for name in counts}
    if draw.random() < 0.4:
        widths = draw.pick(1, 4, out)
    floats = {
        name: draw.tensor(count, widths if isinstance(widths, int) else widths[name])
        for name, count in counts.items()
    }
    form, graph = draw.pick(("edge_index_dict", edges), ("graph", None))
    if form == "graph":
        graph = RelationalGraph.from_typed_edges(edges, counts)
    facts = {"nodes": counts, "edges": {each: value.shape[1] for each, value in edges.items()}}
    return Case(
        kind, (widths, out, metadata), options, floats,
        lambda layer, x: layer(x, _in_order(metadata, edges)), lambda layer, x: layer(x, graph), form, facts,
    )  # fmt: skip


def draw_hgt(draw: Draw) -> Case:
    return _draw_typed(draw, "HGTConv", draw.options(heads=(2, 3)))


def draw_han(draw: Draw) -> Case:
    options = draw.options(heads=(2, 3), negative_slope=(0.0, 0.1, 0.5), dropout=(0.4,))
    return _draw_typed(draw, "HANConv", options)


DRAWERS = {
    "sage": draw_sage,
    "gatv2": draw_gatv2,
    "rgcn": draw_rgcn,
    "rgat": draw_rgat,
    "hgt": draw_hgt,
    "han": draw_han,
}


def draw_case(name: str, number: int) -> Case:
    """Case `number` of the layer `name`."""
    return DRAWERS[name](Draw(f"{name} {number}"))
