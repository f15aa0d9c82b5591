"""A disk that is full on one rank: that rank says so, the others end and name it, or nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import shorthaul as sh
from shorthaul.errors import PartFileError
from tests.distributed.part_folders import WIDTH, cut_homogeneous
from tests.distributed.rank_processes import run_failing_ranks, run_ranks
from tests.small_disks import enlarge, small_disk


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "64k") as mount:
        yield mount


def train(rank: int, folder: Path, scratch: list[Path], on_full: str) -> list[torch.Tensor]:
    """Gradients of each batch, with what autograd saves on a disk of each rank's own."""
    parts = sh.distributed.open(folder, shares_machine=False, timeout_seconds=20.0)
    loader = sh.distributed.MiniBatchLoader(parts, None, (3, 2), 7, features=parts.features())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
    offload = sh.offload_activations(
        scratch[rank], minimum_bytes=64, on_full=on_full, allow_memory=True
    )
    seen = []
    for batch in loader:
        model.zero_grad()
        with offload:
            model(batch.features).square().sum().backward()
        seen.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
    return seen


def test_a_full_scratch_disk_ends_all_ranks(tmp_path: Path, full_disk: Path) -> None:
    cut_homogeneous(tmp_path / "parts", 2)
    scratch = [tmp_path, full_disk]
    one, other = run_failing_ranks(train, 2, tmp_path, tmp_path / "parts", scratch, "raise")
    assert other.kind == "SpoolFullError"
    assert str(full_disk) in other.text
    assert one.kind == "ExchangeError"
    assert "rank 0 (part 0) could not exchange" in one.text
    assert "batch " in one.text
    assert "rank 1 (part 1, process" in one.text


def test_a_full_scratch_disk_costs_memory_and_no_bits(tmp_path: Path, full_disk: Path) -> None:
    """By default what has no room on the disk stays in memory."""
    cut_homogeneous(tmp_path / "parts", 2)
    full, roomy = (
        run_ranks(train, 2, tmp_path, tmp_path / "parts", [tmp_path, second], "keep")
        for second in (full_disk, tmp_path)
    )
    for one, other in zip(full, roomy, strict=True):
        assert len(one) == len(other) > 0
        assert all(mine.equal(theirs) for mine, theirs in zip(one, other, strict=True))


def save_and_go_on(rank: int, folder: Path, saved: Path) -> tuple[str, float]:
    parts = sh.distributed.open(folder, shares_machine=False, timeout_seconds=20.0)
    table = sh.distributed.LearnableTable(parts, "node", 512)
    optimizer = torch.optim.SparseAdam(table.parameters())
    state = {"table": sh.distributed.TableState(table, optimizer)}
    said = ""
    try:
        dcp.save(state, checkpoint_id=saved)
    except BaseException as error:  # torch's own, which is none of `Exception`
        said = f"{type(error).__name__}: {error}"
    rows = table(torch.arange(60))
    rows.sum().backward()
    optimizer.step()
    return said, float(rows.detach().sum())


def test_a_checkpoint_without_room_is_an_error_on_all_ranks(
    tmp_path: Path, full_disk: Path
) -> None:
    """And training may go on."""
    cut_homogeneous(tmp_path / "parts", 2)
    (one, rows), (other, same) = run_ranks(
        save_and_go_on, 2, tmp_path, tmp_path / "parts", full_disk / "saved"
    )
    assert "No space left on device" in one
    assert "No space left on device" in other
    assert rows == same


def test_parts_without_room_are_an_error_and_go_on_where_they_stopped(full_disk: Path) -> None:
    folder = full_disk / "parts"
    x = torch.randn(60, 400)
    with pytest.raises(OSError, match="No space left on device"):
        cut_homogeneous(folder, 2, features=x)
    with pytest.raises(PartFileError, match="partitioning was begun here and did not end"):
        sh.distributed.open(folder)
    enlarge(full_disk, "4m")
    cut_homogeneous(folder, 2, features=x)
    parts = sh.distributed.open(folder)
    assert parts.features()[torch.arange(60)].equal(x[parts.originals().long()])
