"""Which sweep makes what: the order that every backend's loops are written in."""

from shorthaul.relational.backends.sweeps import SweepOrder
from shorthaul.relational.lowering import RowLoop, lower
from shorthaul.relational.passes import run_passes
from tests.relational.programs import attend, convolve, record, sample_graph, sizes_of


def _order(definition):
    *_, (_, program) = run_passes(record(definition), sizes_of(sample_graph()))
    plan = lower(program, program.output_values())
    *_, loop = [work for work in plan.forward if isinstance(work, RowLoop)]
    return SweepOrder(loop, program, plan.stored)


def test_softmax_takes_three_sweeps():
    order = _order(attend)
    assert order.count == 3
    assert [order.reductions_in(sweep) for sweep in range(3)] == [["reduce"], ["reduce_1"], ["sum"]]
    assert order.level("out") == 3  # after the last sweep


def test_narrow_values_are_kept_for_the_next_sweep():
    order = _order(attend)
    assert order.kept_in(1) == ["exp"]
    assert order.kept_before(2)[-1] == "exp"
    assert all(order.program[each].size <= 16 for each in order.kept)


def test_a_sum_takes_one_sweep_and_keeps_nothing():
    order = _order(convolve)
    assert (order.count, order.kept) == (1, {})
    assert order.is_leaf("linear")
    assert not order.is_leaf("divide")
    assert order.is_row(order.program["out"])
    assert not order.is_row(order.program["divide"])
