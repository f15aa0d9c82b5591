"""A rank that is slow: nobody minds within the time that ranks wait, and past it all end and say whom they waited for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import shorthaul as sh
from tests.distributed.part_folders import cut_homogeneous
from tests.distributed.rank_processes import WAIT_SECONDS, Failed, end_ranks, start_ranks


def stand_still_at_the_third(rank: int, folder: Path, topology: Any, seconds: float) -> list[int]:
    """The seeds of all batches; rank 1 is stopped from outside when it has two."""
    parts = sh.distributed.open(
        folder, topology=topology, shares_machine=False, timeout_seconds=seconds
    )
    loader = sh.distributed.MiniBatchLoader(
        parts, None, (3, 2), 7, features=parts.features(), prefetch=0, look_ahead=0
    )
    seen = []
    for batch in loader:
        seen += batch.seeds.tolist()
        if rank == 1 and batch.number == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    return seen


def wait_until_stopped(process: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the rank did not come that far"


@pytest.mark.parametrize("topology", [pytest.param("replicated", marks=pytest.mark.slow), "split"])
def test_a_rank_that_is_slow_within_the_time_costs_nothing(tmp_path: Path, topology: str) -> None:
    cut_homogeneous(tmp_path, 2)
    started, results = start_ranks(
        stand_still_at_the_third, 2, tmp_path, tmp_path, topology, WAIT_SECONDS
    )
    wait_until_stopped(started[1])
    assert started[0].is_alive()
    os.kill(started[1].pid, signal.SIGCONT)
    one, other = end_ranks(started, results)
    seeds = sh.distributed.open(tmp_path).seeds().tolist()
    assert sorted(one + other) == sorted(seeds)


@pytest.mark.parametrize("topology", [pytest.param("replicated", marks=pytest.mark.slow), "split"])
def test_past_the_time_all_end_and_the_slow_one_is_named(tmp_path: Path, topology: str) -> None:
    """Also the slow one itself, which finds nobody when it comes."""
    cut_homogeneous(tmp_path, 2)
    started, results = start_ranks(stand_still_at_the_third, 2, tmp_path, tmp_path, topology, 1.0)
    wait_until_stopped(started[1])
    started[0].join(30)
    has_ended = not started[0].is_alive()
    os.kill(started[1].pid, signal.SIGCONT)
    one, other = end_ranks(started, results)
    assert has_ended
    assert isinstance(one, Failed)
    assert isinstance(other, Failed)
    assert one.kind == "ExchangeError"
    assert "rank 0 (part 0) could not exchange" in one.text
    assert "batch 2 of epoch 0: nothing came within 1 s" in one.text
    assert f"rank 1 (part 1, process {started[1].pid} on " in one.text
    assert "or is slower than 1 s" in one.text
    assert "A rank that is only slow needs a larger timeout_seconds" in one.text
    assert other.kind in ("ExchangeError", "PeerError")
    assert "rank 1 (part 1) could not exchange" in other.text
    assert "rank 0 (part 0, process" in other.text
