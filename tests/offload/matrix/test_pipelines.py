"""Schedules of `torch.distributed.pipelining` under offloading: the gradients that they have without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

import shorthaul as sh
from tests.distributed.rank_processes import run_ranks
from tests.offload.keep_all import require_equal

WIDTH, ROWS, MICRO_BATCHES = 32, 64, 8
SCHEDULES: dict[str, tuple[Callable[..., Any], int]] = {  # and the stages of a rank
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "zero bubble": (ScheduleInterleavedZeroBubble, 2),
}


def loss_of(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (out - target).square().sum()


class Pipeline:
    """Layers over ranks, stage by stage; every stage drops, so that random numbers count, too."""

    def __init__(self, name: str, rank: int, ranks: int) -> None:
        make, own = SCHEDULES[name]
        torch.manual_seed(0)
        modules = [
            nn.Sequential(
                nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.2)
            )
            for _ in range(own * ranks)
        ]
        numbers = [rank + ranks * each for each in range(own)]
        self.modules = [modules[each] for each in numbers]
        stages = [
            PipelineStage(modules[each], each, own * ranks, torch.device("cpu")) for each in numbers
        ]
        given = stages[0] if own == 1 else stages
        self.schedule = make(given, MICRO_BATCHES, loss_fn=loss_of, scale_grads=False)
        self.is_first, self.is_last = rank == 0, rank == ranks - 1

    def step(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Gradients and losses of one step."""
        torch.manual_seed(5)
        x, target = torch.randn(2, ROWS, WIDTH)
        losses: list[torch.Tensor] = []
        inputs = (x,) if self.is_first else ()
        wanted = {"target": target, "losses": losses} if self.is_last else {}
        self.schedule.step(*inputs, **wanted)
        found = [each.grad for module in self.modules for each in module.parameters()]
        for module in self.modules:
            module.zero_grad()
        return [each.clone() for each in found if each is not None], [
            each.detach() for each in losses
        ]


def compare(rank: int, folder: Path, name: str, budget: str | None, ranks: int) -> int:
    """Steps plain and offloaded on this rank, compared here; how many tensors left memory."""
    pipeline = Pipeline(name, rank, ranks)
    expected, losses = pipeline.step()
    assert len(expected) == 4 * len(pipeline.modules)
    assert all(bool(each.any()) for each in expected)
    offload = sh.offload_activations(folder, budget=budget, minimum_bytes=512, allow_memory=True)
    for _ in range(3):  # under a budget the first observes, and the others follow a plan
        with offload:
            found, found_losses = pipeline.step()
        require_equal(expected, found)
        require_equal(losses, found_losses)
    offload.store.wait_until_idle()
    report = offload.report()
    assert (report.live_bytes, report.disk_bytes) == (0, 0)
    dist.barrier()
    return report.counts.offloaded


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("1f1b", "64KiB"),
        ("interleaved", None),
        pytest.param("gpipe", "64KiB", marks=pytest.mark.slow),
        pytest.param("1f1b", None, marks=pytest.mark.slow),
        pytest.param("interleaved", "64KiB", marks=pytest.mark.slow),
        pytest.param("zero bubble", None, marks=pytest.mark.slow),
        pytest.param("zero bubble", "64KiB", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_pipelines_are_the_same_bits(
    tmp_path: Path, name: str, budget: str | None
) -> None:
    assert min(run_ranks(compare, 2, tmp_path, tmp_path, name, budget, 2)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_gradients_of_four_stages_are_the_same_bits(tmp_path: Path, name: str) -> None:
    assert min(run_ranks(compare, 4, tmp_path, tmp_path, name, None, 4)) > 0
