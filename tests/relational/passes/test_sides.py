"""Products on the side where each relation has fewer nodes: less work, the same numbers."""

import pytest
import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import EdgeFeature, NodeFeature, RGCNConv, Weight, layer, linear
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes import sides as pass_module
from shorthaul.relational.passes.compact import compact
from shorthaul.relational.passes.sides import choose_sides
from shorthaul.relational.passes.simplify import canonicalize
from tests.relational.passes.same_numbers import require_same_numbers, sizes
from tests.relational.programs import attend, convolve, record

LEAN = {
    "edge": 100_000,
    "source_pair": 90_000,
    "target_pair": 90_000,
    "source_side_pair": 5_000,
    "target_side_pair": 5_000,
    "source_side_edge": 50_000,
    "target_side_edge": 50_000,
}


@layer
def weigh(
    g,
    x: NodeFeature("width"),
    share: EdgeFeature(1),
    weight: Weight("relation", "width", "out"),
):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += linear(e.source.x, weight[e.relation]) * e.share
    return n.out


def _compacted(definition):
    return canonicalize(compact(record(definition), sizes()), sizes())


def test_each_side_has_its_product():
    made = choose_sides(_compacted(convolve), sizes(**LEAN))
    assert made.text() == (
        "program convolve\n"
        "  x              = input {kind=node}                                        : 5 over node\n"
        "  weight         = input {kind=weight}                                      : 5 3 over relation\n"
        "  count          = count {of=edge, way=target_pair}                         : scalar over target pair\n"
        "  expand_3       = expand x {to=source_side_pair, way=node}                 : 5 over source side pair\n"
        "  linear_1       = linear expand_3, weight {transposed=False, way=relation} : 3 over source side pair\n"
        "  expand_4       = expand linear_1 {to=source_side_edge, way=side_pair}     : 3 over source side edge\n"
        "  expand_5       = expand count {to=source_side_edge, way=target_pair}      : scalar over source side edge\n"
        "  reciprocal_1   = reciprocal expand_5                                      : scalar over source side edge\n"
        "  divide_1       = multiply expand_4, reciprocal_1                          : 3 over source side edge\n"
        "  out_of_sources = reduce divide_1 {kind=sum, way=target}                   : 3 over target\n"
        "  expand_6       = expand x {to=target_side_edge, way=source}               : 5 over target side edge\n"
        "  expand_7       = expand count {to=target_side_edge, way=target_pair}      : scalar over target side edge\n"
        "  reciprocal_2   = reciprocal expand_7                                      : scalar over target side edge\n"
        "  divide_2       = multiply expand_6, reciprocal_2                          : 5 over target side edge\n"
        "  reduce         = reduce divide_2 {kind=sum, way=side_pair}                : 5 over target side pair\n"
        "  linear_2       = linear reduce, weight {transposed=False, way=relation}   : 3 over target side pair\n"
        "  out_of_targets = reduce linear_2 {kind=sum, way=node}                     : 3 over target\n"
        "  out            = add out_of_sources, out_of_targets                       : 3 over target\n"
        "  return out"
    )


@pytest.mark.parametrize("definition", [convolve, weigh])
@pytest.mark.parametrize("trains", [False, True])
def test_the_same_numbers(definition, trains):
    before = _compacted(definition)
    after = choose_sides(before, sizes(trains, **LEAN))
    assert after != before
    require_same_numbers(before, after)


def test_not_where_a_side_saves_too_little():
    before = _compacted(convolve)
    assert choose_sides(before, sizes()) == before
    nearly = {**LEAN, "source_side_pair": 40_000, "target_side_pair": 40_000}
    assert choose_sides(before, sizes(**nearly)) == before


def test_not_where_all_relations_have_few_targets():
    before = _compacted(convolve)
    few = {"target_pair": 9_000, "target_side_pair": 9_000, "target_side_edge": 100_000}
    none = {"source_side_pair": 0, "source_side_edge": 0}
    assert choose_sides(before, sizes(**{**LEAN, **few, **none})) == before


def test_not_for_mini_batches():
    before = _compacted(convolve)
    assert choose_sides(before, sizes(**LEAN, target=900)) == before
    small = {name: rows // 10 for name, rows in LEAN.items()}
    assert choose_sides(before, sizes(**small)) == before


def test_attention_stays_in_one_sweep():
    before = _compacted(attend)
    assert choose_sides(before, sizes(**LEAN)) == before


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"num_blocks": 2}, {"aggr": "add"}])
def test_a_layer_on_a_graph_of_lean_relations(options, monkeypatch):
    monkeypatch.setattr(pass_module, "LEAST_EDGES", 0)
    people, genders = torch.arange(2, 302), torch.randint(2, (300,))
    graph = RelationalGraph.from_edges(
        torch.cat([people, genders]),
        torch.cat([genders, people]),
        torch.tensor([0] * 300 + [1] * 300),
    )
    made = RGCNConv(64, 64, 2, **options).double()
    x = torch.randn(302, 64, dtype=torch.float64, requires_grad=True)
    tensors = [x, *made.parameters()]
    out = made(x, graph)
    got = [out, *torch.autograd.grad(out.square().sum(), tensors)]
    (compiled,) = made.function.compilations.values()
    spaces = {step.space for step in compiled.program.steps if step.operation == "linear"}
    is_divided = {Space.SOURCE_SIDE_PAIR, Space.TARGET_SIDE_PAIR} <= spaces
    assert is_divided == ("num_blocks" not in options)  # blocks are little work
    made.function.backend = "reference"
    plain = made(x, graph)
    for one, other in zip(
        got, [plain, *torch.autograd.grad(plain.square().sum(), tensors)], strict=True
    ):
        torch.testing.assert_close(one, other)
