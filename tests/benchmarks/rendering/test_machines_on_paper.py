"""What many machines would take, on paper."""

from dataclasses import replace

import pytest
import torch

from benchmarks import ledger
from benchmarks.rendering.machines_on_paper import (
    COMPUTE_SECONDS,
    WORKLOADS,
    count_draws,
    expect_distinct,
    plan_step,
    read_reduction,
    render_machines_on_paper,
)
from shorthaul.datasets.power_law.drawing import Recipe, draw_edges

PAPERS = WORKLOADS[0]


@pytest.mark.parametrize(("nodes", "draws"), [(1_000, 500), (1_000, 20_000), (50_000, 100_000)])
def test_distinct_nodes_are_those_that_a_drawn_graph_has(nodes: int, draws: int) -> None:
    drawn = draw_edges(Recipe(nodes, 1, 2, 1, 0, seed=0), 0, draws).source
    assert expect_distinct(nodes, draws) == pytest.approx(len(torch.unique(drawn)), rel=0.02)


def test_a_batch_meets_what_its_fan_outs_allow() -> None:
    assert count_draws(1024, (15, 10, 5)) == 1024 * 16 * 11 * 6
    assert count_draws(7, ()) == 7


def test_a_step_by_hand() -> None:
    step = plan_step(PAPERS, machines=4, gigabits=25, reduction=2.0)
    rows = expect_distinct(111_059_956, 1_081_344)
    assert step.batch_rows == rows
    assert step.remote_rows == pytest.approx(rows * 0.75 / 2)
    assert step.wire_bytes == pytest.approx(rows * 0.75 / 2 * 516)
    assert step.exchange_seconds == pytest.approx(step.wire_bytes / 2.5e9)
    assert step.hidden_share == min(1, COMPUTE_SECONDS / step.exchange_seconds)
    table = 111_059_956 * 512
    topology = (111_059_957 + 1_615_685_872) * 4
    assert step.memory_bytes == pytest.approx(table / 4 + 0.05 * table + topology)


def test_more_machines_and_faster_links_do_what_they_must() -> None:
    steps = [plan_step(PAPERS, each, 25, 1.0) for each in (4, 16, 64)]
    assert [each.remote_rows for each in steps] == sorted(each.remote_rows for each in steps)
    assert [each.memory_bytes for each in steps] == sorted(
        (each.memory_bytes for each in steps), reverse=True
    )
    fast = plan_step(PAPERS, 4, 100, 1.0)
    assert fast.exchange_seconds == pytest.approx(steps[0].exchange_seconds / 4)
    typed = replace(PAPERS, has_relations=True)
    assert typed.topology_bytes - PAPERS.topology_bytes == 4 * PAPERS.edges


def test_the_reduction_is_the_ledgers_and_every_case_has_a_line() -> None:
    rows = ledger.read_runs("wire_bytes")[-1]["rows"]
    counted = {row["arm"]: row["figures"]["fewer_rows"] for row in rows if row["case"] == "4 ranks"}
    reduction = read_reduction(ledger.DIRECTORY)
    assert reduction == pytest.approx(counted["+ rows kept across batches"])
    lines = render_machines_on_paper(ledger.DIRECTORY).splitlines()
    assert len(lines) == 2 + 2 * 3 * 2
    assert len({line.count("|") for line in lines}) == 1
