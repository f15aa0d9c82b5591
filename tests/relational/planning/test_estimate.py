"""Bytes and FLOPs of kernels: against numbers computed by hand, and against what a run allocates."""

import pytest
import torch

from shorthaul.relational import NodeFeature, Weight, layer, linear
from shorthaul.relational.backends.cpp.backend import Run
from shorthaul.relational.backends.cpp.emit_products import ROWS_PER_OUTER_TILE
from shorthaul.relational.inspection.explain import explain_definition, guess_sizes
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.lowering.lifetimes import find_last_uses
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.planning.estimate import Machine, estimate
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import SIZES, attend, draw_inputs, sample_graph

ROWS = {
    Space.NODE: 100,
    Space.TARGET: 80,
    Space.SOURCE_PAIR: 400,
    Space.TARGET_PAIR: 500,
    Space.EDGE: 1000,
}
GUESSED = guess_sizes(nodes=100, targets=80, edges=1000, relations=10)
GRAPH = GraphSizes({space: ROWS.get(space, GUESSED[space]) for space in Space})


@layer
def rgcn(g, x: NodeFeature("width"), weight: Weight("relation", "width", "out")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += linear(e.source.x, weight[e.relation])
    return n.out


def test_rgcn_by_hand():
    """64 to 32 in float32, indexes of 4 bytes: a product over pairs, a sum over edges."""
    costs = explain_definition(rgcn, {"width": 64, "out": 32}, GRAPH, gradients=[]).estimate()
    product, loop = costs.kernels
    x, weight, message, out = 100 * 64 * 4, 10 * 64 * 32 * 4, 400 * 32 * 4, 80 * 32 * 4
    assert dict(product.reads) == {"x": x, "weight": weight}
    assert dict(product.writes) == {"linear": message}
    assert product.index_bytes == 400 * 4  # the node of each pair
    assert product.moved_bytes == x + weight + message + 400 * 4
    assert product.gathered_bytes == 400 * 64 * 4 + weight + message + 400 * 4
    assert product.flops == 2 * 400 * 64 * 32
    assert dict(loop.reads) == {"linear": message}
    assert dict(loop.writes) == {"out": out}
    assert loop.index_bytes == (81 + 1000) * 4  # where targets begin, and the pair of each edge
    assert loop.gathered_bytes == 1000 * 32 * 4 + out + 1081 * 4
    assert loop.flops == 1000 * 32
    assert (product.held_bytes, loop.held_bytes) == (message, message + out)
    assert costs.flops == product.flops + loop.flops
    assert costs.moved_bytes == product.moved_bytes + loop.moved_bytes
    assert costs.peak_bytes == message + out


def test_rgcn_backward_by_hand():
    explained = explain_definition(rgcn, {"width": 64, "out": 32}, GRAPH)
    costs = explained.estimate().of("backward")
    flops = {each.title: each.flops for each in costs.kernels}
    assert flops == {
        "loop over source pair rows: reduce": 1000 * 32,
        "product: linear_1": 2 * 400 * 32 * 64,
        "outer sum: outer": 2 * 400 * 64 * 32,
        "loop over node rows: reduce_1": 400 * 64,
    }
    outer = costs.kernels[2]
    weight = 10 * 64 * 32 * 4
    assert dict(outer.writes) == {"outer": weight}
    assert outer.temporary_bytes == 0  # one tile of pairs for each relation, added up in place
    narrow = estimate(explained.compilation.plan, GRAPH, value_bytes=2).of("backward").kernels[2]
    assert narrow.temporary_bytes == weight  # in float32, then rounded
    many = GraphSizes(GRAPH.rows | {Space.SOURCE_PAIR: 2 * ROWS_PER_OUTER_TILE + 10})
    outer = estimate(explained.compilation.plan, many).of("backward").kernels[2]
    assert outer.temporary_bytes == 4 * 64 * 32 * 4  # at most two relations with two tiles each


def test_rgat_by_hand():
    """Two heads of 16: softmax and the weighted sum are one loop, whose edge values have no bytes."""
    widths = {"width": 64, "out": 16, "heads": 2}
    costs = explain_definition(attend, widths, GRAPH, gradients=[]).estimate()
    assert [each.flops for each in costs.kernels] == [
        2 * 400 * 64 * 32,  # value, for each source pair
        2 * 10 * 64 * 32 * 2,  # W q, for each relation
        2 * 500 * 64 * 2,  # its product, for each target pair
        2 * 400 * 32 * 2,  # k, for each source pair
        # add, leaky_relu, max, subtract, exp, sum, divide; alpha times value, and its sum; bias
        1000 * (7 * 2 + 2 * 32) + 80 * 32,
    ]
    loop = costs.kernels[-1]
    assert dict(loop.reads) == {
        "value": 400 * 32 * 4,
        "linear_2": 400 * 2 * 4,
        "linear_1_1": 500 * 2 * 4,
        "bias": 32 * 4,
    }
    assert dict(loop.writes) == {"out": 80 * 32 * 4}
    assert loop.index_bytes == (81 + 2 * 1000) * 4  # both pairs of each edge


def test_the_roofline_is_the_slower_of_two():
    costs = explain_definition(rgcn, {"width": 64, "out": 32}, GRAPH, gradients=[]).estimate()
    product, loop = costs.kernels
    machine = Machine(bytes_per_second=1e6, flops_per_second=1e6)
    assert product.seconds(machine) == product.flops / 1e6
    assert loop.seconds(machine) == loop.moved_bytes / 1e6
    assert costs.seconds(machine) == product.seconds(machine) + loop.seconds(machine)
    text = costs.text(Machine(20e9, 200e9))
    assert "at best: with 20 GB/s and 200 GFLOP/s" in text
    assert "forward: product: linear" in text
    assert "at best" not in costs.text()


def test_this_machine_has_both_speeds():
    machine = Machine.measure(stream_bytes=2**20)
    assert machine.bytes_per_second > 1e6
    assert machine.flops_per_second > 1e6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_take_what_was_estimated(dtype):
    graph = sample_graph(nodes=30, edges=400)
    made = attend(relations=16, **SIZES).to(dtype)
    topology = Topology.of(graph)
    inputs = draw_inputs(made.program, topology, dtype)
    compiled = made.function.compile(made.program, topology, dtype, tuple(inputs))
    costs = estimate(
        compiled.plan,
        GraphSizes.of(topology),
        value_bytes=dtype.itemsize,
        index_bytes=graph.index_dtype.itemsize,
    )
    values = {name: value.detach() for name, value in inputs.items()}
    values["gradient_of_out"] = torch.randn(topology.num_targets, 6, dtype=dtype)
    given = set(values)
    run = Run(compiled.cpp, topology, values, 0)
    last_uses = find_last_uses(compiled.plan)
    for number, each in enumerate(costs.kernels):
        run._run(range(number, number + 1))
        freed = sum(
            topology.rows(run.program[name].space) * run.program[name].size * dtype.itemsize
            for name in last_uses.get(number, ())
            if any(name in dict(kernel.writes) for kernel in costs.kernels)
        )
        held = sum(
            value.numel() * value.itemsize
            for name, value in run.values.items()
            if name not in given
        )
        assert held == each.held_bytes - freed, each.title
        for name, count in each.writes:
            if name in run.values:
                assert run.values[name].nbytes == count
