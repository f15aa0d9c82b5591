"""Probes of storage: the scratch directory and the ways to it."""

from pathlib import Path

import pytest

from shorthaul.cli.probes.machine import Mount
from shorthaul.cli.probes.storage import (
    describe_scratch,
    describe_trial,
    look_at_scratch,
    look_for_direct,
    look_for_uring,
    measure_scratch,
    try_storage,
)
from shorthaul.cli.trials.disk import RoundTrip
from shorthaul.settings import settings


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("ext4", "ok", "/scratch on ext4, 2.0 GiB free"),
        ("tmpfs", "warning", "what is offloaded there stays in memory"),
        ("nfs4", "warning", "what is offloaded there goes over the network"),
    ],
)
def test_a_file_system_that_is_no_disk_is_a_warning(kind: str, status: str, words: str) -> None:
    found = describe_scratch(Path("/scratch"), Mount(Path("/"), kind, "x"), 2 * 2**30)
    assert found.status == status
    assert found.value.endswith(words)
    assert ("SHORTHAUL_SCRATCH" in found.advice) == (status == "warning")
    assert found.facts["file_system"] == kind


def test_a_scratch_directory_that_is_not_there_is_broken(tmp_path: Path) -> None:
    with settings.override(scratch_directory=tmp_path / "nowhere"):
        found = look_at_scratch()
    assert (found.status, found.value) == ("broken", f"{tmp_path / 'nowhere'} does not exist")
    (tmp_path / "file").touch()
    with settings.override(scratch_directory=tmp_path / "file"):
        assert look_at_scratch().value == f"{tmp_path / 'file'} cannot be written to"


def test_the_scratch_directory_of_this_test_is_described() -> None:
    found = look_at_scratch()
    assert found.status in ("ok", "warning")
    assert found.facts["directory"] == str(settings.scratch_directory)
    assert found.facts["free_bytes"] > 0


@pytest.mark.parametrize("engine", ["thread", "memory"])
def test_storage_is_tried_with_the_engine_that_is_chosen(engine: str) -> None:
    with settings.override(engine=engine):
        found = try_storage()
    assert found.status == "ok"
    assert found.value == f"{engine}: 1,048,699 bytes written and read back equal"


def test_wrong_bytes_are_broken_storage() -> None:
    found = describe_trial("thread", RoundTrip(100, False, 1.0, 1.0))
    assert (found.status, found.advice) == ("broken", "do not trust this disk")


def test_uring_works_or_says_why_not() -> None:
    found = look_for_uring()
    if found.status == "ok":
        assert found.value == "works"
    else:
        assert found.status == "warning"
        assert found.value
        assert found.advice.startswith("threads are used instead")


def test_direct_requests_work_or_say_why_not() -> None:
    found = look_for_direct()
    assert found.status == ("ok" if found.facts["is_direct"] else "warning")
    assert found.value


def test_a_disk_without_room_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shorthaul.cli.trials.disk.LARGEST_FILE_BYTES", 0)
    found = measure_scratch()
    assert (found.status, found.value) == (
        "warning",
        f"{settings.scratch_directory} is too full to measure",
    )


def test_figures_come_with_how_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shorthaul.cli.trials.disk.LARGEST_FILE_BYTES", 16 * 2**20)
    with settings.override(engine="thread"):
        found = measure_scratch()
    assert found.facts["engine"] == "thread"
    assert found.facts["file_bytes"] <= 16 * 2**20
    assert "random 4 KiB reads/s (thread, " in found.value
