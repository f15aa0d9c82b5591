"""Every drive has its own count, whichever directory on it is written to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.offload.drive import drives
from shorthaul.offload.drive.drives import Drives
from shorthaul.offload.drive.endurance import Device, Endurance, WriteLedger


@pytest.fixture
def three_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two on one drive, and one on another."""
    directories = [tmp_path / name for name in ("first", "second", "also first")]
    for each in directories:
        each.mkdir()
    monkeypatch.setattr(
        drives,
        "identify_device",
        lambda path: Device(
            f"{tmp_path} {Path(path).name.split()[-1]}", Path(path).name.split()[-1]
        ),
    )
    return directories


def written(device: Device) -> int:
    return WriteLedger(device).read().total_bytes


def test_directories_of_one_drive_share_a_count(three_directories: list[Path]) -> None:
    wear = Drives(Endurance(daily_bytes=100), three_directories)
    assert [each.name for each in wear.devices] == ["first", "second"]
    wear.note_written(0, 10)
    wear.note_written(1, 40)
    wear.note_written(2, 5)
    assert wear.left_bytes == 60
    assert [each.total_bytes for each in wear.save()] == [15, 40]
    assert [written(each) for each in wear.devices] == [15, 40]


def test_one_drive_that_is_used_up_refuses(three_directories: list[Path]) -> None:
    wear = Drives(Endurance(daily_bytes=100), three_directories)
    wear.note_written(1, 90)
    assert wear.refusal(10) is None
    assert wear.refusal(11) == "today's writes are used up"
    assert wear.limits_per_step(1e9) == (20, 20)  # evenly over both
    assert Drives(Endurance(), three_directories).limits_per_step(1.0) == (None,)
    assert Drives(Endurance(), three_directories).left_bytes is None


def test_the_first_drive_to_be_worn_is_told(three_directories: list[Path]) -> None:
    wear = Drives(Endurance(rated_bytes=1000), three_directories)
    wear.note_written(0, 200)
    wear.note_written(1, 600)
    assert wear.days_left(wear.save(), bytes_per_day=20.0) == pytest.approx(400 / 10)
    unrated = Drives(Endurance(), three_directories)
    assert unrated.days_left(unrated.save(), bytes_per_day=20.0) is None


@pytest.mark.parametrize("spread", ["turns", "stripes"])
def test_what_is_offloaded_is_counted_where_it_was_written(
    three_directories: list[Path], spread: str
) -> None:
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])
    offload = sh.offload_activations(
        three_directories, spread=spread, minimum_bytes=0, allow_memory=True
    )
    with offload:
        loss = model(torch.randn(512, 64)).sum()
    offload.store.wait_until_idle()  # what is still on its way is not written in vain
    loss.backward()
    report = offload.report()
    counts = [written(each) for each in offload.wear.devices]
    assert report.drive == "first and second"
    assert sum(counts) == report.drive_written_bytes == report.counts.written_bytes
    share = counts[1] / sum(counts)
    assert 0.2 < share < 0.5  # a third
    offload.close()
    assert not list(three_directories[1].iterdir())
