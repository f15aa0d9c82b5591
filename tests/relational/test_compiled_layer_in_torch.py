"""Compiled layers where PyTorch expects modules: torch.compile, export, autocast, copies, threads."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import shorthaul as sh
from shorthaul.errors import LayerArgumentError, SecondDerivativeError
from shorthaul.relational import HGTConv, RelationalGraph, RGATConv, RGCNConv
from shorthaul.relational.inputs.graph import find_graph
from tests.relational import ddp_process
from tests.relational.programs import SIZES, attend, convolve, drop, sample_graph, widths_of

TYPES = (["author", "paper"], [("author", "writes", "paper"), ("paper", "cites", "paper")])


def _edges(nodes, edges, seed=0):
    generator = torch.Generator().manual_seed(seed + nodes)
    x = torch.randn(nodes, 5, generator=generator)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    return x, ends, torch.randint(3, (edges,), generator=generator)


def _graph(nodes, edges):
    x, ends, kinds = _edges(nodes, edges)
    return x, RelationalGraph.from_edge_index(ends, kinds, num_nodes=nodes, num_relations=3)


def _typed(extra):
    generator = torch.Generator().manual_seed(extra)
    authors, papers = 4 + extra, 6 + extra
    x = {
        "author": torch.randn(authors, 5, generator=generator),
        "paper": torch.randn(papers, 8, generator=generator),
    }
    writes = torch.stack(
        [torch.randint(each, (9 + extra,), generator=generator) for each in (authors, papers)]
    )
    cites = torch.randint(papers, (2, 7 + extra), generator=generator)
    return x, {TYPES[1][0]: writes, TYPES[1][1]: cites}


def _flat(outputs):
    return list(outputs.values()) if isinstance(outputs, dict) else [outputs]


def _gradients(module, outputs):
    loss = sum(each.square().sum() for each in outputs)
    return torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)


def _require_same(module, traced, arguments):
    expected, got = _flat(module(*arguments)), _flat(traced(*arguments))
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(one, other)
    pairs = zip(_gradients(module, expected), _gradients(module, got), strict=True)
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


CASES = {
    "rgcn, edge_index": (lambda: RGCNConv(5, 4, 3), [_edges(9 + n, 30 + 4 * n) for n in range(3)]),
    "rgat, graph": (
        lambda: RGATConv(5, 4, 3, heads=2),
        [_graph(9 + n, 30 + 4 * n) for n in range(3)],
    ),
    "hgt, dicts": (
        lambda: HGTConv({"author": 5, "paper": 8}, 8, TYPES, heads=2),
        [_typed(n) for n in range(3)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_compile_records_the_whole_layer_and_every_graph_fits(name):
    make, calls = CASES[name]
    torch._dynamo.reset()
    module, counter = make(), CompileCounterWithBackend("aot_eager")
    traced = torch.compile(module, fullgraph=True, backend=counter)
    for arguments in calls:
        _require_same(module, traced, arguments)
    # The first with its sizes as numbers, the second with symbols, and no other.
    assert counter.frame_count <= 2


def test_compile_takes_a_layer_of_ones_own_with_two_types_of_nodes():
    torch._dynamo.reset()
    module = attend(relations=16, node_types=2, **SIZES)
    counter = CompileCounterWithBackend("aot_eager")
    traced = torch.compile(
        lambda graph, x: module(graph, x).relu(), fullgraph=True, backend=counter
    )
    for nodes in (20, 21, 22):
        graph, x = sample_graph(nodes, 100 + nodes), torch.randn(nodes, 5, requires_grad=True)
        expected = module(graph, x).relu()
        got = traced(graph, x)
        assert torch.equal(expected, got)
        (one,) = torch.autograd.grad(expected.sum(), x)
        (other,) = torch.autograd.grad(got.sum(), x)
        torch.testing.assert_close(one, other)
    assert counter.frame_count <= 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_inductor_generates_code_around_the_layer():
    torch._dynamo.reset()
    module = nn.ModuleList([RGCNConv(5, 4, 3), RGCNConv(4, 2, 3)])

    def model(x, ends, kinds):
        return module[1](torch.relu(module[0](x, ends, kinds)), ends, kinds).log_softmax(-1)

    traced = torch.compile(model, fullgraph=True)
    arguments = _edges(12, 40)
    expected, got = model(*arguments), traced(*arguments)
    torch.testing.assert_close(expected, got)
    for one, other in zip(_gradients(module, [expected]), _gradients(module, [got]), strict=True):
        torch.testing.assert_close(one, other)


def test_compiled_models_find_the_indexes_that_the_graph_has():
    torch._dynamo.reset()
    x, graph = _graph(9, 30)
    module = RGCNConv(5, 4, 3)
    with torch.no_grad():
        torch.compile(module, fullgraph=True, backend="aot_eager")(x, graph)
    assert "target" in graph.indexes
    x, ends, kinds = _edges(9, 30)
    kept = find_graph(ends, kinds, 9, 3)
    assert not kept.indexes
    with torch.no_grad():
        torch.compile(module, fullgraph=True, backend="aot_eager")(x, ends, kinds)
    assert "target" in kept.indexes


def test_dropout_differs_from_call_to_call_in_a_compiled_model():
    torch._dynamo.reset()
    module = drop(width=5).train()
    traced = torch.compile(module, fullgraph=True, backend="aot_eager")
    graph = sample_graph(nodes=9, edges=40)
    x = torch.ones(9, 5, requires_grad=True)
    first, second = traced(graph, x), traced(graph, x)
    assert not torch.equal(first, second)
    (gradient,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(gradient.sum(), first.sum())


class _TwoLayers(nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.first, self.second, self.graph = RGCNConv(5, 4, 3), RGATConv(4, 2, 3), graph

    def forward(self, x):
        return self.second(self.first(x, self.graph).relu(), self.graph)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_holds_its_graph_and_outlives_its_layers(strict):
    x, graph = _graph(9, 30)
    model = _TwoLayers(graph).eval()
    expected = model(x).detach()
    written = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,), strict=strict), written)
    del model, graph
    gc.collect()
    written.seek(0)
    again = torch.export.load(written).module()
    torch.testing.assert_close(again(x), expected)


RUN_EXPORTED = """
import sys, torch, shorthaul.relational
folder, is_made = sys.argv[1], sys.argv[2] == "made"
if is_made:
    layers = shorthaul.relational.RGCNConv(5, 4, 3), shorthaul.relational.RGATConv(4, 2, 3)
x, expected = torch.load(f"{folder}/values.pt")
torch.testing.assert_close(torch.export.load(f"{folder}/model.pt2").module()(x), expected)
"""


def test_an_exported_model_runs_in_another_process_that_makes_its_layers(tmp_path):
    x, graph = _graph(9, 30)
    model = _TwoLayers(graph).eval()
    torch.save((x, model(x).detach()), tmp_path / "values.pt")
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    command = [sys.executable, "-c", RUN_EXPORTED, str(tmp_path)]
    subprocess.run([*command, "made"], check=True)
    without = subprocess.run([*command, "not made"], capture_output=True, text=True, check=False)
    assert without.returncode != 0
    assert "make the same layer" in without.stderr


def test_export_with_edges_as_inputs_of_any_size():
    module = RGCNConv(5, 4, 3).eval()
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    shapes = {"x": {0: nodes}, "edge_index": {1: edges}, "edge_type": {0: edges}}
    exported = torch.export.export(module, _edges(9, 30), dynamic_shapes=shapes).module()
    other = _edges(17, 50)
    torch.testing.assert_close(exported(*other), module(*other))


@pytest.mark.parametrize("is_traced", [False, True])
def test_autocast_computes_as_linear_layers_do(is_traced):
    torch._dynamo.reset()
    x, graph = _graph(9, 30)
    module = RGCNConv(5, 4, 3)
    called = torch.compile(module, fullgraph=True, backend="aot_eager") if is_traced else module
    with torch.autocast("cpu", torch.bfloat16):
        out = called(x, graph)
        assert out.dtype is nn.Linear(5, 4)(x).dtype is torch.bfloat16
    narrow = copy.deepcopy(module).bfloat16()
    assert torch.equal(out, narrow(x.bfloat16(), graph))
    out.float().sum().backward()
    assert module.weight.grad.dtype is torch.float32
    wide = copy.deepcopy(module).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert wide(x.double(), graph).dtype is torch.float64


def test_second_derivatives_are_refused_with_a_way_out():
    x, graph = _graph(9, 30)
    x.requires_grad_()
    module = RGCNConv(5, 4, 3)

    def penalty():
        (gradient,) = torch.autograd.grad(module(x, graph).square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), module.weight)[0]

    with pytest.raises(SecondDerivativeError, match='backend = "reference"'):
        penalty()
    module.function.backend = "reference"
    assert bool(penalty().any())


def test_pickled_and_copied_layers_compute_the_same():
    x, graph = _graph(9, 30)
    own = attend(relations=3, **SIZES)
    for module, arguments in ((RGCNConv(5, 4, 3), (x, graph)), (own, (graph, x))):
        expected = module(*arguments)
        for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
            assert torch.equal(other(*arguments), expected)
            assert other.state_dict().keys() == module.state_dict().keys()


def test_functional_call_and_torch_func_grad():
    x, graph = _graph(9, 30)
    module = convolve(relations=3, **widths_of(convolve))
    doubled = {"weight": module.weight.detach() * 2}
    out = torch.func.functional_call(module, doubled, (graph, x))
    torch.testing.assert_close(out, module(graph, x) * 2)

    def loss(weight):
        return torch.func.functional_call(module, {"weight": weight}, (graph, x)).square().sum()

    got = torch.func.grad(loss)(module.weight.detach())
    (expected,) = torch.autograd.grad(module(graph, x).square().sum(), module.weight)
    torch.testing.assert_close(got, expected)


def test_hooks_and_parametrizations_are_seen():
    x, graph = _graph(9, 30)
    module = convolve(relations=3, **widths_of(convolve))
    plain, seen = module(graph, x), []
    handle = module.register_forward_hook(lambda _, given, out: seen.append(tuple(out.shape)))
    module(graph, x)
    handle.remove()
    assert seen == [(9, 3)]

    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    nn.utils.parametrize.register_parametrization(module, "weight", Half())
    torch.testing.assert_close(module(graph, x), plain / 2)


def test_threads_share_a_layer_and_its_first_compilation():
    module = convolve(relations=3, **widths_of(convolve))
    calls = [_graph(9 + n % 3, 30 + n) for n in range(8)]
    plain = copy.deepcopy(module)
    plain.function.backend = "reference"
    expected = [plain(graph, x) for x, graph in calls]
    got, barrier = [None] * len(calls), threading.Barrier(len(calls))

    def run(number):
        x, graph = calls[number]
        barrier.wait()
        for _ in range(5):
            got[number] = module(graph, x)
        got[number].sum().backward()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert len(module.function.compilations) == 1


def test_unified_features_are_read_where_they_lie(tmp_path):
    x, graph = _graph(9, 30)
    module = convolve(relations=3, **widths_of(convolve))
    expected = module(graph, x)
    assert torch.equal(module(graph, sh.unified(x)), expected)
    with sh.meter() as counted:
        module(graph, sh.unified(x))
    assert counted.moved_bytes == 0  # nothing was gathered
    sh.save_features(tmp_path / "x.npy", x)
    assert torch.equal(module(graph, sh.open(tmp_path / "x.npy")), expected)


def test_unified_features_learn():
    x, graph = _graph(9, 30)
    module = convolve(relations=3, **widths_of(convolve))
    x.requires_grad_()
    table = sh.unified(x.detach().clone()).requires_grad_()
    module(graph, x).square().sum().backward()
    module(graph, table).square().sum().backward()
    torch.testing.assert_close(table.grad, x.grad)


def test_a_unified_table_without_enough_rows_is_refused():
    x, graph = _graph(9, 30)
    with pytest.raises(LayerArgumentError, match=r"`x` has shape \(8, 5\), expected \(9, 5\)"):
        convolve(relations=3, **widths_of(convolve))(graph, sh.unified(x[:8]))


def test_two_processes_average_their_gradients(tmp_path):
    context = torch.multiprocessing.spawn(
        ddp_process.run, (str(tmp_path / "rendezvous"),), nprocs=ddp_process.PROCESSES, join=False
    )
    give_up_at = time.monotonic() + 120
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < give_up_at, "the processes wait for each other"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
