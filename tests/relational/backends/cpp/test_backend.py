"""The generated kernels: equal to the reference on odd graphs, memory given back."""

import pytest
import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import NodeFeature, Weight, layer, tanh
from tests.relational.programs import SIZES, attend

GRAPHS = {
    "no edges": ([], [], [], 5, 3),
    "one edge": ([1], [1], [2], 5, 3),
    "one hub": ([0, 1, 2, 3] * 50, [4] * 200, [0, 1, 2, 0] * 50, 5, 3),
    "a hub of several pieces": ([0, 1, 2, 3] * 300, [4] * 1200, [0, 1, 2, 0] * 300, 5, 3),
    "more relations than edges": ([0, 1], [1, 0], [7, 30], 2, 40),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_odd_graphs(name, index_dtype):
    source, target, relation, nodes, relations = GRAPHS[name]
    graph = RelationalGraph.from_edges(
        torch.tensor(source, dtype=torch.int64),
        torch.tensor(target, dtype=torch.int64),
        torch.tensor(relation, dtype=torch.int64),
        num_nodes=nodes,
        num_relations=relations,
        index_dtype=index_dtype,
    )
    made = attend(relations=relations, **SIZES).double()
    torch.nn.init.normal_(made.bias)
    x = torch.randn(nodes, 5, dtype=torch.float64, requires_grad=True)
    tensors = [x, *made.parameters()]
    out = made(graph, x)
    got = torch.autograd.grad(out.square().sum(), tensors)
    made.function.backend = "reference"
    plain = made(graph, x)
    torch.testing.assert_close(out, plain)
    for one, other in zip(
        got, torch.autograd.grad(plain.square().sum(), tensors, materialize_grads=True), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_products_and_loops_of_many_kernels_are_compiled_apart(monkeypatch):
    monkeypatch.setattr("shorthaul.relational.backends.cpp.backend.MANY_KERNELS", 1)
    made = attend(relations=3, width=4, out=2, heads=3).double()
    graph = RelationalGraph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], relation=[0, 1, 2, 0])
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for backend in ("cpp", "reference"):
        made.function.backend = backend
        out = made(graph, x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *made.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    compiled = made.function.compilations.values()
    (plan,) = (each.cpp for each in compiled if each.gradients and each.backend == "cpp")
    loops = {plan.names[number] for number in plan.loops}
    named = [{each.name for each in source.functions} for source in plan.sources]
    assert len(named) == 4
    assert all(each <= loops or not each & loops for each in named)
    assert sorted(name for each in named for name in each) == sorted(plan.names.values())


def test_intermediate_values_are_forgotten_after_the_last_kernel_that_reads_them():
    made = attend(relations=2, **SIZES)
    graph = RelationalGraph.from_edges([0, 1], [1, 2], relation=[0, 1])
    x = torch.randn(3, 5, requires_grad=True)
    made(graph, x)
    from shorthaul.relational.backends.cpp.backend import Run
    from shorthaul.relational.runtime.arguments import prepare_arguments
    from shorthaul.relational.topology.topology import Topology

    (compiled,) = made.function.compilations.values()
    topology = Topology.of(graph)
    values = prepare_arguments(made.program, topology, {"x": x, **dict(made.named_parameters())})
    run = Run(compiled.cpp, topology, dict(values), 0)
    run.forward()
    kept = set(run.values) - set(values)
    assert kept == {*compiled.plan.saved, "out"} | ({"sum"} & kept)
    with pytest.raises(KeyError, match="has not been made"):
        run.value("gradient_of_out")


@layer
def add_own(g, x: NodeFeature("width"), scale: Weight("width")):
    for n in g.nodes():
        n.scaled = n.x * scale
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.sum += e.source.scaled
        n.out = n.sum + n.scaled
    return n.out


def test_gradients_of_nodes_that_are_no_targets_are_only_those_of_edges():
    source, target = torch.randint(9, (20,)), torch.randint(5, (20,))
    graph = RelationalGraph.from_edges(source, target, num_nodes=9)
    made = add_own(width=3).double()
    x = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    arrived = torch.randn(5, 3, dtype=torch.float64)
    found = []
    for backend in ("cpp", "reference"):
        made.function.backend = backend
        out = made.function(graph, {"x": x, "scale": made.scale}, num_targets=5)
        found.append(torch.autograd.grad(out, [x, made.scale], arrived))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@layer
def weigh(g, x: NodeFeature("width"), scale: Weight("width")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.source.x * scale
    return n.out


def test_a_hub_with_very_many_edges_is_summed_as_in_a_wider_type():
    edges = 300_000
    hub, others = torch.zeros(edges, dtype=torch.int64), torch.randint(1, 7, (edges,))
    both = RelationalGraph.from_edges(torch.cat([hub, others]), torch.cat([others, hub]))
    found = []
    for dtype in (torch.float32, torch.float64):
        made = weigh(width=4).to(dtype)
        torch.nn.init.constant_(made.scale, 0.1)
        x = torch.full((7, 4), 0.3, dtype=dtype, requires_grad=True)
        out = made(both, x)
        found.append([out, *torch.autograd.grad(out.sum(), [x, made.scale])])
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(narrow.double(), wide, rtol=3e-5, atol=0)


@layer
def agree(g, x: NodeFeature("width"), scale: Weight("width")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += tanh(e.source.x * e.target.x * scale)
    return n.out


def test_gradients_of_weights_in_few_bits_are_summed_in_more():
    edges = 600_000
    graph = RelationalGraph.from_edges(torch.randint(9, (edges,)), torch.randint(9, (edges,)))
    made = agree(width=2).bfloat16()
    torch.nn.init.zeros_(made.scale)
    out = made(graph, torch.ones(9, 2, dtype=torch.bfloat16))
    (found,) = torch.autograd.grad(out.sum(), made.scale)
    torch.testing.assert_close(found, torch.full_like(found, edges), rtol=2**-8, atol=0)
