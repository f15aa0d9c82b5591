"""Which sweep makes what: the order that every backend's loops are written in."""

from shorthaul.relational import NodeFeature, tanh
from shorthaul.relational.backends.cpp.emit_row_loop import emit_row_loop
from shorthaul.relational.backends.loop_order import SweepOrder
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.lowering.kernels import RowLoop, lower
from shorthaul.relational.passes import run_passes
from shorthaul.relational.passes.differentiate import differentiate
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


def test_a_returned_row_of_a_node_is_read_where_the_node_lies():
    """A value spread to the edges has memory if it is returned; no loop may count on it."""

    def returned(g, x: NodeFeature(2)):
        for e in g.edges():
            e.seen = tanh(e.source.x)
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.out += e.seen * e.target.x
        return n.out, e.seen

    sizes = sizes_of(sample_graph())
    *_, (_, forward) = run_passes(trace(returned, {}), sizes)
    program = differentiate(forward, ["x"])
    seen = program.outputs[1][1]
    plan = lower(program, program.output_values()[:2])
    assert program[seen].operation == "expand"
    assert seen in plan.stored
    assert seen not in plan.saved
    loops = [work for work in plan.forward + plan.backward if isinstance(work, RowLoop)]
    assert not any(SweepOrder(work, program, plan.stored).is_leaf(seen) for work in loops)
    for work in loops:
        assert seen not in emit_row_loop("loop", work, program, plan.stored, [seen]).leaves.values()
