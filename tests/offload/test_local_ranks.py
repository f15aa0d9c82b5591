"""A budget of a machine, and the wear of its drives, are shared by the ranks on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shorthaul as sh
from shorthaul.errors import LocalRanksError
from shorthaul.offload.drive.endurance import Endurance, WearLimit, WriteLedger
from shorthaul.offload.local_ranks import count_local_ranks, split_budget
from shorthaul.settings import settings
from tests.distributed.rank_processes import run_ranks
from tests.offload.keep_all import require_equal

MACHINE_BYTES = 12 * 2**20


def test_a_budget_of_a_machine_is_shared_out() -> None:
    four = {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}
    assert split_budget("16GiB/machine", four) == 4 * 2**30
    assert split_budget(" 1 GB/machine ", {}) == 10**9  # a process alone
    assert split_budget("16GiB", four) == 16 * 2**30  # of each process, as ever
    assert split_budget(None, four) is None
    assert [count_local_ranks(each) for each in (four, {}, {"LOCAL_WORLD_SIZE": "x"})] == [4, 1, 1]


@pytest.mark.parametrize(
    ("environment", "told"),
    [({"WORLD_SIZE": "8"}, "is not set"), ({"LOCAL_WORLD_SIZE": "0"}, "is '0'")],
)
def test_nobody_guesses_how_many_share_it(environment: dict[str, str], told: str) -> None:
    with pytest.raises(LocalRanksError, match=f"LOCAL_WORLD_SIZE {told}"):
        split_budget("16GiB/machine", environment)


@pytest.mark.parametrize("budget", ["16GiB/node", "/machine", "16GiB/machine/machine"])
def test_other_words_are_no_budget(budget: str) -> None:
    with pytest.raises(ValueError, match="expected bytes such as"):
        sh.offload_activations(budget=budget)


def train(rank: int, folder: Path, ranks: int) -> Any:
    """Two steps under a budget of the machine: gradients are compared here, the rest is told."""
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    torch.manual_seed(rank)
    model = nn.Sequential(*(each for _ in range(8) for each in (nn.Linear(256, 256), nn.Tanh())))
    x = torch.randn(1024, 256)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).square().mean().backward()
        return [each.grad.clone() for each in model.parameters()]

    expected = gradients()
    with settings.override(state_directory=folder / "state"), sh.meter() as meter:
        offload = sh.offload_activations(
            folder, budget=f"{MACHINE_BYTES}/machine", minimum_bytes="64KiB", allow_memory=True
        )
        for _ in range(3):
            with offload:
                require_equal(expected, gradients())
        offload.store.wait_until_idle()
        files = {
            os.fstat(spool.file.buffered_descriptor).st_ino for spool in offload.store.spools.spools
        }
        report = offload.report()
        offload.wear.save()
        dist.barrier()
        total_bytes = WriteLedger(offload.wear.devices[0]).read().total_bytes
    counts = report.counts
    assert offload.store.budget_bytes == MACHINE_BYTES // ranks
    assert 0 < counts.written_bytes <= meter.written_bytes  # the disk is measured, too
    return counts.peak_mapped_bytes, meter.written_bytes, files, total_bytes


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_stay_within_the_budget_of_their_machine(tmp_path: Path, ranks: int) -> None:
    found = run_ranks(train, ranks, tmp_path, tmp_path, ranks)
    peaks, written, files, totals = zip(*found, strict=True)
    assert sum(peaks) <= MACHINE_BYTES
    assert len(set().union(*files)) == ranks  # a scratch file of its own for each
    assert set(totals) == {sum(written)}  # one count of the drive


def write_much(rank: int, folder: Path, ranks: int, daily_bytes: int) -> int:
    """Write in small pieces until the drive's day is used up; how much that was."""
    from shorthaul.offload.drive.endurance import Device

    limit = WearLimit(
        Endurance(daily_bytes=daily_bytes), WriteLedger(Device("drive", "drive"), folder), ranks
    )
    first, all_of_it = limit.limits_per_step(1e9)
    assert (first, all_of_it) == (daily_bytes // ranks, daily_bytes // ranks)
    dist.barrier()
    written = 0
    while limit.refusal(100) is None:
        limit.note_written(100)
        written += 100
    limit.save()
    return written


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_share_what_may_be_written_in_a_day(tmp_path: Path, ranks: int) -> None:
    daily_bytes = 200_000
    written = run_ranks(write_much, ranks, tmp_path, tmp_path, ranks, daily_bytes)
    # What the others have not told yet is within a quarter of what is left.
    assert daily_bytes - 100 <= sum(written) <= 1.25 * daily_bytes
