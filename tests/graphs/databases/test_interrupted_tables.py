"""Ctrl-C at any line of making a graph of tables arrives, and leaves no file behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from tests.graphs.databases.test_from_tables import WANTED, write_sqlite
from tests.injected_interrupts import find_places, run_interrupted

EVERY = 29  # of the lines, in the quick test


def interrupt_each_line(folder: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    write_sqlite(folder / "shop.db")
    (folder / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "scratch"))

    def make() -> list[torch.Tensor]:
        made = sh.graphs.from_tables(WANTED, database=folder / "shop.db")
        return [made.graph.source, made.graph.target, *made.features.values()]

    expected = make()
    arrived = 0
    for place in find_places(make, "graphs/databases/")[::every]:
        arrived += run_interrupted(make, place)
        assert not list((folder / "scratch").iterdir()), place
        for one, other in zip(make(), expected, strict=True):
            assert torch.equal(one, other), place
    assert arrived > 3


def test_some_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_each_line(tmp_path, monkeypatch, EVERY)


@pytest.mark.slow
def test_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_each_line(tmp_path, monkeypatch, 1)
