"""When a rank fails while all draw from a split topology, every other ends and names it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import shorthaul as sh
from tests.distributed.part_folders import cut_homogeneous
from tests.distributed.rank_processes import Failed, end_ranks, run_failing_ranks, start_ranks


def fail_while_drawing(rank: int, folder: Path, how: str) -> None:
    parts = sh.distributed.open(folder, topology="split", shares_machine=False, timeout_seconds=5.0)
    loader = sh.distributed.MiniBatchLoader(
        parts, None, (3, 2), 7, features=parts.features(), prefetch=0, look_ahead=0
    )
    if rank == 1:
        hops = loader.sampler.drawing
        real = hops.draw

        def draw(nodes: Any, rows: Any, *, hop: int, number: int) -> Any:
            if number == 2 and hop == 1:
                if how == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise MemoryError("no memory for a sample")
            return real(nodes, rows, hop=hop, number=number)

        hops.draw = draw
    for _ in loader:
        pass


def test_a_rank_that_cannot_draw_tells_the_others(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 3)
    found = run_failing_ranks(fail_while_drawing, 3, tmp_path, tmp_path, "fails")
    assert found[1].kind == "MemoryError"
    for rank in (0, 2):
        assert found[rank].kind == "PeerError"
        assert f"rank {rank} (part {rank}) could not exchange" in found[rank].text
        assert "batch 2 of epoch 0: another rank had an error" in found[rank].text
        assert "rank 1 (part 1, process" in found[rank].text
        assert "MemoryError: no memory for a sample" in found[rank].text


def test_a_rank_that_dies_while_drawing_is_named(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 3)
    started, results = start_ranks(fail_while_drawing, 3, tmp_path, tmp_path, "dies")
    found = end_ranks(started, results)
    for rank in (0, 2):
        assert isinstance(found[rank], Failed)
        assert found[rank].kind in ("ExchangeError", "PeerError")
        assert f"rank 1 (part 1, process {started[1].pid} on " in found[rank].text
        assert "is no longer running" in found[rank].text
        assert "batch 2 of epoch 0" in found[rank].text


def ask_wrongly(rank: int, folder: Path) -> None:
    sh.distributed.open(folder, topology="split" if rank else "replicated")


def test_ranks_that_want_other_topologies_are_told(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for found in run_failing_ranks(ask_wrongly, 2, tmp_path, tmp_path):
        assert found.kind == "RankDisagreementError"
        assert "topology=: rank 0 has replicated; rank 1 has split" in found.text


def fan_out_wrongly(rank: int, folder: Path) -> None:
    parts = sh.distributed.open(folder, topology="split", timeout_seconds=20.0)
    sh.distributed.MiniBatchLoader(parts, None, (3, -2 if rank else 2), 7)


def test_wrong_fan_outs_on_one_rank_are_known_to_all(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = run_failing_ranks(fan_out_wrongly, 2, tmp_path, tmp_path)
    assert (one.kind, other.kind) == ("PeerError", "SamplingError")
    assert "fan_outs[1] must be a whole number" in one.text


@pytest.mark.parametrize("lost", ["topology-1/node.edges.npy", "topology-1/node.pointers.npy"])
def test_a_part_that_lacks_edges_is_named(tmp_path: Path, lost: str) -> None:
    cut_homogeneous(tmp_path, 2, topology="split")
    (tmp_path / lost).unlink()
    with pytest.raises(sh.errors.PartFileError, match=f"{lost}: the file is missing"):
        sh.distributed.open(tmp_path)
