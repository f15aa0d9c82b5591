"""Ctrl-C at any line of a partitioning arrives, and the next run goes on to the very same parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shorthaul.distributed.partition.manifest import JOURNAL, Manifest
from tests.distributed.part_folders import cut_homogeneous
from tests.injected_interrupts import find_places, run_interrupted

EVERY = 41  # of the lines, in the quick test


def list_files(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def interrupt_each_line(folder: Path, every: int) -> None:
    cut_homogeneous(folder / "whole", 2, hot=0.1)
    expected, files = Manifest.read(folder / "whole").files, list_files(folder / "whole")
    place = folder / "parts"

    def cut() -> None:
        cut_homogeneous(place, 2, hot=0.1)

    def cut_anew() -> None:
        shutil.rmtree(place, ignore_errors=True)
        cut()

    arrived = 0
    for line in find_places(cut_anew, "distributed/partition/")[::every]:
        arrived += run_interrupted(cut_anew, line)
        left = list_files(place) if place.exists() else set()
        # But for what the next run needs to know.
        assert not {each for each in left - files if not each.startswith(("work/", JOURNAL))}, line
        cut()
        assert Manifest.read(place).files == expected, line
        assert list_files(place) == files, line
    assert arrived > 3


def test_some_lines(tmp_path: Path) -> None:
    interrupt_each_line(tmp_path, EVERY)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_line(tmp_path: Path) -> None:
    interrupt_each_line(tmp_path, 1)
