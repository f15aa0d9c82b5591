"""The whole compiler: stages, switches, text."""

import itertools

import pytest
import torch

from shorthaul.relational import RGCNConv, SAGEConv
from shorthaul.relational.compiler import compile_program
from tests.relational.programs import attend, convolve, record, sample_graph, sizes_of


def _compile(**options):
    sizes = sizes_of(sample_graph())
    return compile_program(record(attend), sizes, torch.float32, torch.int32, **options)


def test_every_stage_is_shown():
    sections = dict(_compile(gradients=("x",)).sections())
    assert {"as written", "compact", "differentiate", "kernels", "generated source"} <= set(
        sections
    )
    assert "void attend_forward_0_value(" in sections["generated source"]


def test_a_pass_can_be_left_out():
    with_pairs, without = _compile(), _compile(without=("compact",))
    assert "over source pair" in with_pairs.program.text()
    assert "over source pair" not in without.program.text()


def test_an_unknown_pass_is_refused():
    with pytest.raises(ValueError, match="there are canonicalize"):
        _compile(without=("magic",))


def test_sizes_are_not_in_the_source():
    sources = [
        compile_program(
            record(convolve), sizes_of(sample_graph(edges=edges)), torch.float32, torch.int32
        ).cpp.sources
        for edges in (40, 70)
    ]
    assert sources[0] == sources[1]


def test_the_backward_pass_is_a_source_of_its_own():
    assert len(_compile().cpp.sources) == 1
    made = _compile(gradients=("x",)).cpp
    forward, *rest = ({each.name for each in source.functions} for source in made.sources)
    backward = set().union(*rest)  # which has so many kernels that they are divided
    assert all("_forward_" in name for name in forward)
    assert all("_backward_" in name for name in backward)
    assert forward | backward == set(made.names.values())


@pytest.mark.parametrize("layer", ["sums of pairs", "bases", "narrow means"])
def test_other_orders_run_compiled(layer):
    torch.manual_seed(0)
    source, target = torch.randint(60, (900,)), torch.randint(6, (900,))
    relation = torch.randint(30 if layer == "bases" else 5, (900,))
    convolve = {
        "sums of pairs": lambda: RGCNConv(24, 24, 5),
        "bases": lambda: RGCNConv(64, 8, 30, num_bases=2),
        "narrow means": lambda: SAGEConv(40, 4),
    }[layer]()
    x = torch.randn(60, convolve.in_channels, requires_grad=True)
    edges = (torch.stack([source, target]),) + ((relation,) if "narrow" not in layer else ())
    got = []
    for backend in ("cpp", "reference"):
        convolve.function.backend = backend
        out = convolve(x, *edges)
        got.append((out, *torch.autograd.grad(out.square().sum(), [x, *convolve.parameters()])))
    for one, other in zip(*got, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    (made,) = convolve.function.compilations.values()
    changed = {name for (_, a), (name, b) in itertools.pairwise(made.stages) if a != b}
    assert {"bases": "order_bases"}.get(layer, "place_products") in changed


def test_equal_programs_for_equal_graphs_are_compiled_once():
    graph = sample_graph()
    first, second = (RGCNConv(8, 8, graph.num_relations) for _ in range(2))
    x = torch.randn(graph.num_nodes, 8)
    first(x, graph), second(x, graph)
    shared = {id(each.function.last_call[0]) for each in (first, second)}
    assert len(shared) == 1
    wider = RGCNConv(8, 16, graph.num_relations)
    wider(x, graph)
    assert id(wider.function.last_call[0]) not in shared
