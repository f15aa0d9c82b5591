"""The window method: what is chosen for it, and what is measured in place of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shorthaul.conv.layout.weights import PairedPanels
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.window import Window, choose_tile
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import forward_task
from shorthaul.conv.problem.machine import AVX2, AVX512, VectorMachine
from tests.conv.machines import hold_choices_to

LARGE = forward_task(ConvProblem(64, 64, (1, 3, 3)), 1, (1, 56, 56))
SMALL = forward_task(ConvProblem(64, 64, (1, 3, 3)), 1, (1, 8, 8))


@pytest.mark.parametrize("machine", [AVX2, AVX512])
def test_small_work_has_the_tile_of_general_kernels(
    machine: VectorMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_choices_to(machine, monkeypatch)
    small, large = Window().schedule(SMALL), Window().schedule(LARGE)
    assert (small.rows, small.vectors) == machine.tiles()[0]
    assert (large.rows, large.vectors) == choose_tile(LARGE, machine)
    assert (small.is_specialized, large.is_specialized) == (False, True)


def test_groups_as_wide_as_a_vector_read_packed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_choices_to(AVX2, monkeypatch)
    problem = ConvProblem(64, 32, (1, 3, 3), groups=4, layout="channels_last")
    task = forward_task(problem, 8, (1, 56, 56))
    assert (Window().schedule(task).windows, Window().schedule(task).vectors) == ("rows", 1)
    deep = forward_task(replace(problem, kernel=(3, 3, 3)), 8, (9, 56, 56))
    assert Window().schedule(deep).windows is None


def test_kernels_for_the_shape_and_other_strips_are_measured() -> None:
    first = Window().schedule(SMALL)
    refined = Window().refine(first)
    assert all(each.is_specialized for each in refined)
    assert [each.strip_bytes for each in refined] == [
        first.strip_bytes,
        first.strip_bytes // 2,
        None,
    ]
    assert len(Window().refine(replace(first, has_pairs=True))) == 1


def test_pairs_are_packed_in_the_order_of_their_runs() -> None:
    task = replace(LARGE, dtype=torch.bfloat16)
    schedule = ConvSchedule("window", 6, 2, strip_bytes=100_000, has_pairs=True)
    weights = Window().plan(task, None, schedule, 1).weights
    assert isinstance(weights, PairedPanels)
    assert weights.run_order in ("taps", "rows")
