"""Columns written in any order, which appear when they are whole."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from shorthaul.errors import StorageError, TableOpenError
from shorthaul.graphs.streams.column_file import ColumnFile
from shorthaul.storage import open_engine


def test_runs_come_where_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with open_engine() as engine, ColumnFile(path, torch.int64, 10, engine) as column:
        column.write(8, torch.tensor([80, 90]))
        runs = torch.tensor([30, 40, 0, 10, 20])
        column.write_runs(torch.tensor([3, 5, 0]), runs, torch.tensor([0, 2, 2, 5]))
        column.settle()
        assert column.read(0, 5).tolist() == [0, 10, 20, 30, 40]
        assert not path.exists()
        column.finish()
    assert np.load(path).tolist() == [0, 10, 20, 30, 40, 0, 0, 0, 80, 90]
    assert [*tmp_path.iterdir()] == [path]


def test_what_was_not_finished_is_gone(tmp_path: Path) -> None:
    def stop() -> None:
        with open_engine() as engine, ColumnFile(tmp_path / "x", torch.int32, 5, engine) as column:
            column.write(0, torch.tensor([1], dtype=torch.int32))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert [*tmp_path.iterdir()] == []


def test_a_column_of_zeros_takes_no_space(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with (
        open_engine() as engine,
        ColumnFile(path, torch.int32, 2**22, engine, is_zero=True) as column,
    ):
        column.finish()
    assert path.stat().st_size == 4096 + 2**24
    assert path.stat().st_blocks * 512 <= 2**16
    assert not np.load(path).any()


def test_a_full_disk_shows_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with (
        open_engine() as engine,
        pytest.raises(StorageError, match="ENOSPC"),
        ColumnFile(tmp_path / "x.npy", torch.int32, 5, engine),
    ):
        pass
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with (
        open_engine() as engine,
        pytest.raises(TableOpenError, match="cannot be written"),
        ColumnFile(tmp_path / "none" / "x.npy", torch.int32, 5, engine),
    ):
        pass
