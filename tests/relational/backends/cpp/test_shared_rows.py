"""Hubs, whose edges threads share: the reference's numbers, in an order that the graph alone decides."""

import numpy as np
import pytest
import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import (
    NodeFeature,
    Weight,
    concat,
    dot,
    layer,
    linear,
    reduce_max,
    reduce_mean,
    reduce_min,
    softmax,
    tanh,
)
from tests.relational.drawn_checks import check_kernels, compile_case, make_case, run_kernels
from tests.relational.drawn_layers import draw_layer, draw_tensors

HUB_EDGES, PIECE, PART = 8192, 512, 2048  # a row with more than so many is shared; how it is cut


def draw_hubs(
    seed: int,
    ends: tuple[int, ...] = (20_000, 9001, HUB_EDGES),
    nodes: int = 40,
    index_dtype: torch.dtype = torch.int64,
) -> RelationalGraph:
    """Nodes into which many edges lead, others out of which many do, and a node without edges."""
    generator = torch.Generator().manual_seed(seed)
    few = nodes - 1

    def draw(count: int) -> torch.Tensor:
        return torch.randint(0, few, (count,), generator=generator)

    source, target = [draw(500)], [draw(500)]
    for number, count in enumerate(ends):
        source += [draw(count), torch.full((count,), number + len(ends))]
        target += [torch.full((count,), number), draw(count)]
    sources, targets = torch.cat(source), torch.cat(target)
    relation = (torch.rand(len(sources), generator=generator) ** 4 * 4).long()
    names = [(one, f"{n}", other) for n in range(4) for one in "ab" for other in "ab"]
    first = nodes // 2
    typed = relation * 4 + (sources >= first).long() * 2 + (targets >= first).long()
    order = torch.randperm(len(sources), generator=generator)
    return RelationalGraph.from_edges(
        sources[order],
        targets[order],
        typed[order],
        relations=names,
        nodes_per_type={"a": first, "b": nodes - first},
        index_dtype=index_dtype,
    )


@layer
def take(g, x: NodeFeature("width"), scale: Weight("width")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.source.x * scale
    return n.out


def add_up(rows: np.ndarray) -> np.ndarray:
    """Pieces, then parts of pieces, then the parts: each from the front to the back."""

    def in_order(each: np.ndarray) -> np.ndarray:
        return np.add.accumulate(each, axis=0, dtype=each.dtype)[-1]

    def by(size: int, each: np.ndarray) -> list[np.ndarray]:
        return [each[at : at + size] for at in range(0, len(each), size)]

    parts = by(PART, rows) if len(rows) > HUB_EDGES else [rows]
    sums = [in_order(np.stack([in_order(p) for p in by(PIECE, part)])) for part in parts]
    return in_order(np.stack(sums))


@pytest.mark.parametrize("edges", [HUB_EDGES, HUB_EDGES + 1, 3 * PART * PIECE // 100 + 7, 50_000])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_hub_is_cut_where_only_its_edges_say(edges, threads):
    source = torch.randint(1, 200, (edges,))
    graph = RelationalGraph.from_edges(source, torch.zeros_like(source), num_nodes=200)
    made = take(width=3)
    torch.nn.init.ones_(made.scale)
    x = torch.randn(200, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            got = made.function(graph, {"x": x, "scale": made.scale}, num_targets=1)
    finally:
        torch.set_num_threads(before)
    assert got[0].numpy().tobytes() == add_up(x[source].numpy()).tobytes()


@layer
def gather(
    g,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "out"),
    asked: Weight("out"),
):
    """Every reduction, of which softmax needs two before the sum, and sums per (target, relation)."""
    for e in g.edges():
        e.value = linear(e.source.x, weight[e.relation])
        e.alpha = softmax(dot(e.value, asked) + dot(linear(e.target.x, weight[e.relation]), asked))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.alpha * e.value
            n.share += e.value / e.count(within="relation")
            n.out = concat(
                reduce_max(e.value), reduce_min(e.source.x * 2.0), reduce_mean(tanh(e.value))
            )
        n.all = concat(n.out, n.heard, n.share)
    return n.all


def make_inputs(graph, dtype):
    made = gather(relations=graph.num_relations, width=5, out=3).to(dtype)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(graph.num_nodes, 5, generator=generator, dtype=torch.float64).to(dtype)
    for weight in made.parameters():
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data = (0.5 * drawn).to(dtype)
    return made, x.requires_grad_()


def run_step(made, graph, x, threads=0):
    """The result, and all gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        out = made(graph, x)
        return out, *torch.autograd.grad(out.square().mean(), [x, *made.parameters()])
    finally:
        torch.set_num_threads(before)


def test_hubs_get_the_references_numbers_and_gradients():
    graph = draw_hubs(0, index_dtype=torch.int32)
    made, x = make_inputs(graph, torch.float64)
    got = run_step(made, graph, x)
    made.function.backend = "reference"
    for one, other in zip(got, run_step(made, graph, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hubs_get_the_same_bits_from_any_number_of_threads(dtype):
    graph = draw_hubs(1)
    made, x = make_inputs(graph, dtype)
    expected = run_step(made, graph, x, threads=1)
    for threads in (2, 3, 7):
        for one, other in zip(expected, run_step(made, graph, x, threads=threads), strict=True):
            assert torch.equal(one, other)


def test_more_hubs_than_are_taken_together():
    graph = draw_hubs(2, ends=(700_000, 600_000, 9000), nodes=12)
    made = strange(width=1).double()
    torch.nn.init.ones_(made.scale)
    x = torch.randn(graph.num_nodes, 1, dtype=torch.float64, requires_grad=True)
    found = []
    for backend in ("cpp", "reference"):
        made.function.backend = backend
        results = made(graph, x)
        loss = sum(each.sum() for each in results)
        found.append([*results, *torch.autograd.grad(loss, [x, made.scale])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@layer
def strange(g, x: NodeFeature("width"), scale: Weight("width")):
    for e in g.edges():
        e.alpha = softmax(e.source.x * scale)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.high, n.low = reduce_max(e.source.x), reduce_min(e.source.x)
            n.sum += e.alpha * e.source.x
    return n.high, n.low, n.sum


@pytest.mark.parametrize("place", [3, 17_000])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_strange_number_in_one_part_of_a_hub(place, value):
    source = torch.arange(1, 20_001)
    graph = RelationalGraph.from_edges(source, torch.zeros_like(source), num_nodes=20_001)
    made = strange(width=2)
    torch.nn.init.ones_(made.scale)
    x = torch.randn(20_001, 2)
    x[place, 0] = value
    found = []
    for backend in ("cpp", "reference"):
        made.function.backend = backend
        with torch.no_grad():
            tensors = {"x": x, "scale": made.scale}
            found.append(made.function(graph, tensors, num_targets=1))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-5)


def _check_drawn(seed: int) -> bool:
    """A drawn layer on a graph with hubs: plain PyTorch in float64, bits of one thread and three."""
    drawn, graph = draw_layer(seed), draw_hubs(seed)
    case = make_case(drawn, graph, graph.num_nodes, draw_tensors(drawn, graph, seed), 1e-12)
    if case is None:
        return False
    compiled = compile_case(case)
    check_kernels(case, compiled)
    one, three = (run_kernels(case, compiled, threads) for threads in (1, 3))
    assert all(torch.equal(one[name], three[name]) for name in one)
    return True


def test_drawn_layers_on_hubs():
    assert sum(_check_drawn(seed) for seed in range(4)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_many_drawn_layers_on_hubs(first):
    assert sum(_check_drawn(seed) for seed in range(first, first + 10)) >= 3
