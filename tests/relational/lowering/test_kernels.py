"""Which kernels a program becomes: as few as fusion allows, and no tensor per edge."""

import pytest

from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.lowering.kernels import lower, results_of
from shorthaul.relational.passes import run_passes
from shorthaul.relational.passes.differentiate import differentiate
from tests.relational.programs import LAYERS, SIZES, record, sample_graph, sizes_of


def _lower(name, gradients=()):
    sizes = sizes_of(sample_graph())
    *_, (_, program) = run_passes(record(LAYERS[name]), sizes)
    forward = program.output_values()
    if gradients:
        *_, (_, program) = run_passes(differentiate(program, gradients), sizes)
        forward = program.output_values()[:1]
    return lower(program, forward)


def test_attention_is_three_products_and_one_loop():
    assert _lower("attend").text() == (
        "forward\n"
        "  product: value = linear expand, weight {transposed=False, way=relation} : 6 over source pair\n"
        "  product: linear = linear expand_1, weight {transposed=False, way=relation} : 6 over target pair\n"
        "  product: linear_1 = linear linear, query {transposed=False, way=all} : 2 over target pair\n"
        "  product: linear_2 = linear value, key {transposed=False, way=all} : 2 over source pair\n"
        "  loop over target rows and the edge rows of each: reduce, reduce_1, sum, out"
    )


def test_a_product_per_edge_finds_its_rows():
    text = _lower("additive", ["x", "weight", "query", "score", "bias"]).text()
    forward, _, backward = text.partition("backward")
    assert "loop over edge rows: hidden\n  product: linear_1 = linear hidden, score" in forward
    assert "hidden" in backward.partition("saved for backward: ")[2]


@pytest.mark.parametrize("name", ["convolve", "attend"])
def test_no_row_of_an_edge_has_memory(name):
    plan = _lower(name, ["x", "weight"])
    for work in plan.forward + plan.backward:
        for result in results_of(work):
            step = plan.program[result]
            assert step.space is not Space.EDGE or step.size == SIZES["heads"]  # attention


@pytest.mark.parametrize("name", LAYERS)
def test_every_value_is_made_once_and_before_it_is_read(name):
    plan = _lower(name, ["x", "weight"] if name in ("convolve", "attend") else ["x"])
    from shorthaul.relational.lowering.kernels import operands_of

    made = {step.name for step in plan.program.inputs}
    for work in plan.forward + plan.backward:
        assert operands_of(work, plan.program, set(plan.stored)) <= made
        assert made.isdisjoint(results_of(work))
        made |= set(results_of(work))
