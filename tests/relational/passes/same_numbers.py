"""The same numbers before and after a pass, forward and backward, as the reference backend runs them."""

import torch

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import draw_inputs, run_detached, sample_graph

ROWS = {
    Space.ONE: 1,
    Space.RELATION: 10,
    Space.NODE_TYPE: 2,
    Space.NODE: 1_000,
    Space.TARGET: 1_000,
    Space.SOURCE_PAIR: 9_000,
    Space.TARGET_PAIR: 9_000,
    Space.EDGE: 10_000,
    Space.SOURCE_SIDE_PAIR: 9_000,
    Space.SOURCE_SIDE_EDGE: 10_000,
    Space.TARGET_SIDE_PAIR: 0,
    Space.TARGET_SIDE_EDGE: 0,
}


def sizes(trains: bool = False, **rows: int) -> GraphSizes:
    """Sizes to choose by; the numbers are checked on a small graph, which need not have them."""
    return GraphSizes(ROWS | {Space[name.upper()]: count for name, count in rows.items()}, trains)


def require_same_numbers(before: Program, after: Program) -> None:
    topology = Topology.of(sample_graph())
    inputs = draw_inputs(before, topology)
    (output,) = before.outputs
    rows = topology.rows(before[output[1]].space)
    arrived = torch.randn(rows, *before[output[1]].shape, dtype=torch.float64)
    wanted = list(inputs)
    inputs[f"gradient_of_{output[0]}"] = arrived
    expected = run_detached(differentiate(before, wanted), topology, inputs)
    got = run_detached(differentiate(after, wanted), topology, inputs)
    assert set(got) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, msg=lambda m, name=name: f"{name}: {m}")
