"""Run compiled layers in Triton's interpreter against plain PyTorch; prints one JSON line per case.

A program of its own, because Triton decides at import whether it interprets. Errors are relative to
the largest element of what plain PyTorch finds in float64.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import (
    CompGCNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    HANConv,
    HeteroConv,
    HGTConv,
    NodeFeature,
    RGATConv,
    RGCNConv,
    SAGEConv,
    SimpleHGN,
    TransformerConv,
    Weight,
    layer,
    linear,
)
from shorthaul.relational.backends.triton import math as triton_math
from shorthaul.relational.ir.dropout_mask import keep_mask, start_state
from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.layers.homogeneous.base import HomogeneousConv
from shorthaul.relational.passes import sides
from tests.relational.layers.comparing import use_backend
from tests.relational.programs import (
    LAYERS,
    attend,
    convolve,
    drop,
    everything,
    sample_graph,
    transform,
    widths_of,
)

Call = Callable[[Any], Any]


def small_graph() -> RelationalGraph:
    """Two types of nodes, relations without edges, isolated nodes, a repeated edge."""
    return sample_graph(nodes=6, edges=14, relations=2)


def hub_graph() -> RelationalGraph:
    """Nodes in every bucket of degrees: one of 150 edges, one of 20, and few."""
    generator = torch.Generator().manual_seed(1)
    target = torch.tensor([0] * 150 + [1] * 20 + [2, 3, 3])
    source = torch.randint(6, target.shape, generator=generator)
    relation = torch.randint(3, target.shape, generator=generator)
    return RelationalGraph.from_edges(source, target, relation, num_nodes=6, num_relations=4)


def no_edges() -> RelationalGraph:
    empty = torch.empty(0, dtype=torch.int64)
    return RelationalGraph.from_edges(empty, empty, empty, num_nodes=3, num_relations=2)


def compare(module: torch.nn.Module, inputs: list[torch.Tensor], call: Call) -> dict[str, float]:
    """Errors of outputs and of every gradient; `call(module, *inputs)` runs it."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    plain = copy.deepcopy(module).double()
    got = _results(module, inputs, call, "triton")
    wide = [each.detach().double().requires_grad_() for each in inputs]
    expected = _results(plain, wide, call, "reference")
    assert got.keys() == expected.keys()
    return {name: relative_error(got[name], expected[name]) for name in got}


def _results(
    module: torch.nn.Module, inputs: list[torch.Tensor], call: Call, backend: str
) -> dict[str, torch.Tensor]:
    for each in module.modules():
        use_backend(each, backend)
        for weighted in (False, True) if isinstance(each, HomogeneousConv) else ():
            function = each.message_function(is_weighted=weighted)  # what a HeteroConv repeats
            if not isinstance(function, str):
                function.backend = backend
    torch.manual_seed(3)  # of dropout
    out = call(module, *inputs)
    outputs = list(out.values()) if isinstance(out, dict) else out
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    outputs = [
        each for each in outputs if each is not None
    ]  # HAN's, of types that nothing leads to
    generator = torch.Generator().manual_seed(4)
    loss = sum(
        (each * torch.randn(each.shape, generator=generator).to(each.dtype)).sum()
        for each in outputs
    )
    named = {f"input {number}": each for number, each in enumerate(inputs)}
    named |= dict(module.named_parameters())
    if (
        not loss.requires_grad
    ):  # plain PyTorch on a graph without edges: nothing depends on anything
        loss = loss + 0 * sum(each.sum() for each in named.values())
    gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    found = {f"output {number}": each.detach() for number, each in enumerate(outputs)}
    return found | dict(zip(named, gradients, strict=True))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert got.shape == expected.shape, (got.shape, expected.shape)
    if not got.isfinite().all():
        return float("inf")
    if not expected.numel():
        return 0.0
    largest = max(float(expected.abs().max()), 0.05)  # of a zero, what terms of about one leave
    return float((got.double() - expected).abs().max()) / largest


def make(definition: Any, graph: RelationalGraph, dtype: torch.dtype) -> tuple[Any, list[Any]]:
    made = definition(
        relations=graph.num_relations, node_types=len(graph.node_types), **widths_of(definition)
    ).to(dtype)
    generator = torch.Generator().manual_seed(5)
    rows = {"x": graph.num_nodes, "strength": graph.num_edges, "detail": graph.num_edges}
    features = [
        torch.randn(rows[name], *made.program[name].shape, generator=generator)
        .to(dtype)
        .requires_grad_()
        for name in made.function.feature_names
    ]
    return made, features


def check_program(definition: Any, graph: RelationalGraph, dtype: torch.dtype) -> dict[str, float]:
    made, features = make(definition, graph, dtype)
    return compare(made, features, lambda module, *inputs: module(graph, *inputs))


def check_layer(made: torch.nn.Module, width: int, edge_dim: int = 0) -> dict[str, float]:
    generator = torch.Generator().manual_seed(6)
    edge_index = torch.randint(6, (2, 24), generator=generator)
    edge_type = torch.randint(3, (24,), generator=generator)
    inputs = [torch.randn(7, width, generator=generator).requires_grad_()]
    if edge_dim:
        inputs.append(torch.randn(24, edge_dim, generator=generator).requires_grad_())
    if isinstance(made, HomogeneousConv | GINConv):
        return compare(
            made, inputs, lambda module, *given: module(given[0], edge_index, *given[1:])
        )
    if isinstance(made, CompGCNConv):
        inputs.append(torch.randn(4, width, generator=generator).requires_grad_())
    return compare(made, inputs, lambda module, x, *more: module(x, edge_index, edge_type, *more))


def check_sides() -> dict[str, float]:
    """Relations that are multiplied before the sum and after it."""
    many, few = torch.arange(2, 32), torch.arange(30) % 2
    graph = RelationalGraph.from_edges(
        torch.cat([many, few]), torch.cat([few, many]), torch.tensor([0] * 30 + [1] * 30)
    )
    x = torch.randn(32, 24, generator=torch.Generator().manual_seed(8)).requires_grad_()
    made = RGCNConv(24, 20, 2)
    sides.LEAST_EDGES = 0  # of the pass: here the graph is small
    found = compare(made, [x], lambda module, *inputs: module(*inputs, graph))
    (compiled,) = made.function.compilations.values()
    assert Space.TARGET_SIDE_PAIR in {step.space for step in compiled.program.steps}
    return found


def check_typed(kind: Any, heads: int) -> dict[str, float]:
    nodes = {"a": 4, "b": 5, "c": 2}
    kinds = [("a", "x", "b"), ("b", "y", "a"), ("b", "z", "b"), ("c", "w", "b")]
    generator = torch.Generator().manual_seed(7)
    edges = {
        each: torch.stack(
            [torch.randint(nodes[each[end]], (6,), generator=generator) for end in (0, 2)]
        )
        for each in kinds[:3]
    } | {kinds[3]: torch.empty(2, 0, dtype=torch.int64)}
    inputs = [
        torch.randn(count, 6, generator=generator).requires_grad_() for count in nodes.values()
    ]
    made = kind(dict.fromkeys(nodes, 6), 8, (list(nodes), kinds), heads)
    return compare(made, inputs, lambda module, *x: module(dict(zip(nodes, x, strict=True)), edges))


def check_nan() -> dict[str, float]:
    """A NaN reaches what it should, and nothing else, also through a maximum."""
    made, features = make(everything, small_graph(), torch.float32)
    x, *more = (each.detach() for each in features)
    found = []
    with torch.no_grad():
        x[2] = float("nan")
        for backend in ("triton", "reference"):
            made.function.backend = backend
            found.append(made(small_graph(), x, *more).isnan())
    assert found[1].any()
    assert not found[1].all()
    return {"NaN": float(not torch.equal(*found))}


def check_large_logits() -> dict[str, float]:
    made, (x,) = make(attend, small_graph(), torch.float32)
    made.function.backend = "triton"
    with torch.no_grad():
        return {"infinite": float(not made(small_graph(), x * 1e4).isfinite().all())}


@layer
def multiply(g, x: NodeFeature(2, "depth"), w: Weight("relation", 2, "depth", "width")):
    for e in g.edges():
        e.out = linear(e.source.x, w[e.relation])
    return e.out


def check_product(depth: int, width: int, dtype: torch.dtype) -> dict[str, float]:
    """A product and its gradients at sizes that fill no block, with heads, against PyTorch."""
    sizes = torch.tensor([0, 1, 2, 70])
    relation = torch.repeat_interleave(torch.arange(4), sizes)
    generator = torch.Generator().manual_seed(depth)
    source = torch.randint(9, relation.shape, generator=generator)
    graph = RelationalGraph.from_edges(source, source, relation, num_nodes=9, num_relations=4)
    x = torch.randn(9, 2, depth, generator=generator).to(dtype).requires_grad_()
    made = multiply(relations=4, depth=depth, width=width).to(dtype)
    return compare(made, [x], lambda module, *inputs: module(graph, *inputs))


@triton.jit
def _functions_kernel(x, out, COUNT: tl.constexpr):  # noqa: N803
    at = tl.arange(0, COUNT)
    value = tl.load(x + at)
    tl.store(out + at, triton_math.expm1(value))
    tl.store(out + COUNT + at, triton_math.tanh(value))
    tl.store(out + 2 * COUNT + at, triton_math.gelu(value))
    tl.store(out + 3 * COUNT + at, triton_math.gelu_slope(value))
    tl.store(out + 4 * COUNT + at, triton_math.silu(value))
    tl.store(out + 5 * COUNT + at, triton_math.silu_slope(value))


@triton.jit
def _keep_kernel(out, state, COUNT: tl.constexpr, LIMIT: tl.constexpr):  # noqa: N803
    at = tl.arange(0, COUNT)
    tl.store(out + at, triton_math.is_kept(state, at.to(tl.int64), LIMIT).to(tl.float32))


def check_kept() -> dict[str, float]:
    """Dropout keeps the elements that PyTorch's mask keeps, for states of either sign."""
    found = {}
    for seed in (0, 5, 2**61 + 12345, 77, 123456789):
        state = start_state(seed, 3)
        out = torch.empty(256)
        _keep_kernel[(1,)](out, state - 2**32 if state >= 2**31 else state, COUNT=256, LIMIT=2**30)
        kept = keep_mask(64, 4, 0.25, 3, seed, out) > 0
        assert 0.6 < float(kept.float().mean()) < 0.9
        found[f"seed {seed}"] = float(not torch.equal(out > 0, kept))
    return found


def check_functions(dtype: torch.dtype) -> dict[str, float]:
    """Each function at small, usual and large numbers; errors relative to each number."""
    small = torch.logspace(-12, 1.5, 32, dtype=torch.float64)
    x = torch.cat([small, -small]).to(dtype)
    out = torch.empty(6, 64, dtype=dtype)
    _functions_kernel[(1,)](x, out, COUNT=64)
    wide = x.double()
    expected = {
        "expm1": torch.expm1(wide),
        "tanh": torch.tanh(wide),
        "gelu": torch.nn.functional.gelu(wide),
        "gelu_slope": POINTWISE["gelu_slope"].torch(wide),
        "silu": torch.nn.functional.silu(wide),
        "silu_slope": POINTWISE["silu_slope"].torch(wide),
    }
    found = {}
    for row, (name, each) in zip(out.double(), expected.items(), strict=True):
        # Where the result vanishes at large negative numbers, its digits do, too: in PyTorch as well.
        scale = each.abs().clamp(min=0.1 if name.startswith(("gelu", "silu")) else 0)
        found[name] = float(((row - each).abs() / scale).max())
    return found


def kernel_cases() -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Single kernels and functions."""
    yield "functions, float64", lambda: check_functions(torch.float64)
    yield "functions, float32", lambda: check_functions(torch.float32)
    yield "kept elements", check_kept
    yield "product, 1 by 1, float32", lambda: check_product(1, 1, torch.float32)
    yield "product, 17 by 23, float32", lambda: check_product(17, 23, torch.float32)
    yield "product, 40 by 3, float32", lambda: check_product(40, 3, torch.float32)
    yield "product, 17 by 23, float64", lambda: check_product(17, 23, torch.float64)
    # Not bfloat16: Triton's interpreter multiplies its bits as whole numbers.
    yield "product, 20 by 70, float16", lambda: check_product(20, 70, torch.float16)
    yield "product, 5 by 7, bfloat16", lambda: check_product(5, 7, torch.bfloat16)
    yield "NaN, float32", check_nan
    yield "large logits, float32", check_large_logits


def program_cases() -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """The shared programs: every operation, every bucket, empty graphs, both widths of numbers."""
    wide, narrow = torch.float64, torch.float32
    yield "everything, float64", lambda: check_program(everything, small_graph(), wide)
    yield "everything, float32", lambda: check_program(everything, small_graph(), narrow)
    yield "attend, float64", lambda: check_program(attend, small_graph(), wide)
    yield "attend, hub, float32", lambda: check_program(attend, hub_graph(), narrow)
    yield "convolve, float32", lambda: check_program(convolve, small_graph(), narrow)
    yield "convolve, no edges, float32", lambda: check_program(convolve, no_edges(), narrow)
    yield "transform, float32", lambda: check_program(transform, small_graph(), narrow)
    yield "drop, float32", lambda: check_program(drop, small_graph(), narrow)


def layer_cases() -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """The ready layers, with the options that change their programs."""
    yield "RGCN, bases", lambda: check_layer(RGCNConv(6, 4, 3, num_bases=2), 6)
    yield "RGCN, blocks, sum", lambda: check_layer(RGCNConv(6, 4, 3, num_blocks=2, aggr="add"), 6)
    yield "RGCN, max", lambda: check_layer(RGCNConv(6, 4, 3, aggr="max"), 6)
    yield "RGCN, wide", lambda: check_layer(RGCNConv(24, 20, 3), 24)  # tl.dot, with remainders
    yield "RGCN, two sides", check_sides
    additive = {"attention_mode": "additive-self-attention", "heads": 2, "edge_dim": 3}
    yield "RGAT, additive", lambda: check_layer(RGATConv(6, 4, 3, **additive), 6, 3)
    within = {
        "attention_mode": "multiplicative-self-attention",
        "attention_mechanism": "within-relation",
        "dim": 2,
    }
    yield "RGAT, multiplicative", lambda: check_layer(RGATConv(6, 4, 3, **within), 6)
    yield "HGT", lambda: check_typed(HGTConv, 2)
    yield "HAN", lambda: check_typed(HANConv, 2)
    yield "GATv2", lambda: check_layer(GATv2Conv(6, 4, heads=2, edge_dim=3), 6, 3)
    yield "SimpleHGN", lambda: check_layer(SimpleHGN(6, 4, 3, edge_dim=5, heads=2), 6)
    yield "CompGCN", lambda: check_layer(CompGCNConv(6, 4, 2, batch_norm=False), 6)
    yield "SAGE", lambda: check_layer(SAGEConv(6, 4), 6)


def homogeneous_cases() -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """The other layers of one relation, and of many that are computed together."""
    yield "GAT", lambda: check_layer(GATConv(6, 4, heads=2, edge_dim=3), 6, 3)
    yield "Transformer", lambda: check_layer(TransformerConv(6, 4, heads=2, beta=True), 6)
    yield "GraphConv, max", lambda: check_layer(GraphConv(6, 4, "max"), 6)
    yield "GCN", lambda: check_layer(GCNConv(6, 4), 6)
    nn = torch.nn.Linear(6, 4)
    yield "GIN, min", lambda: check_layer(GINConv(nn, train_eps=True, aggr="min"), 6)
    yield "SAGE, several", lambda: check_layer(SAGEConv(6, 4, ["mean", "max"]), 6)
    yield "HeteroConv of SAGE", lambda: check_typed(_make_hetero_sage, 1)
    yield "HeteroConv of GAT", lambda: check_typed(_make_hetero_gat, 2)


def _make_hetero_sage(widths: Any, out: int, metadata: Any, heads: int) -> HeteroConv:
    return HeteroConv({each: SAGEConv((6, 6), out) for each in metadata[1]})


def _make_hetero_gat(widths: Any, out: int, metadata: Any, heads: int) -> HeteroConv:
    options = {"heads": heads, "add_self_loops": False}
    return HeteroConv({each: GATConv((6, 6), out // heads, **options) for each in metadata[1]})


def many_cases() -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Every shared program on every graph, in every dtype."""
    graphs = {"small": small_graph, "hub": hub_graph, "no edges": no_edges}
    for name, definition in {**LAYERS, "drop": drop}.items():
        for kind, graph in graphs.items():
            for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
                yield (
                    f"{name}, {kind}, {str(dtype).removeprefix('torch.')}",
                    lambda d=definition, g=graph, t=dtype: check_program(d, g(), t),
                )
    for mod in ("additive", "scaled", "f-additive", "f-scaled"):
        yield f"RGAT, {mod}", lambda m=mod: check_layer(RGATConv(6, 4, 3, mod=m, heads=2), 6)
    yield "HGT, one head", lambda: check_typed(HGTConv, 1)
    yield from homogeneous_cases()


GROUPS = (kernel_cases, program_cases, layer_cases, many_cases)


def main(group: int) -> None:
    warnings.simplefilter("ignore")  # NumPy's, of the padding that Triton's interpreter computes on
    torch.set_num_threads(1)
    for name, check in GROUPS[group]():
        print(json.dumps({"case": name, "errors": check()}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
