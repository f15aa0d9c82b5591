"""A column of numbers in a file, written in any order and read back, that appears when it is whole."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from shorthaul.errors import StorageError, TableOpenError
from shorthaul.interrupts import deferred_interrupts
from shorthaul.storage import StorageEngine, Ticket
from shorthaul.tensors.files.part_files import open_part, sweep_parts, sync_directory
from shorthaul.tensors.save_features import HEADER_BYTES, npy_header

WHY = "graph columns"


class ColumnFile:
    """`count` numbers of `dtype` in a .npy file; used in a `with` block, after which it has its name or is gone.

    Nothing is written to a column that `is_zero`: its file is a hole, which takes no space.
    """

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype,
        count: int,
        engine: StorageEngine,
        *,
        is_zero: bool = False,
    ) -> None:
        self.path, self.dtype, self.count = path, dtype, count
        self.is_zero = is_zero
        self._engine = engine
        self._under_way: list[tuple[Ticket, torch.Tensor]] = []

    def __enter__(self) -> ColumnFile:
        try:
            with deferred_interrupts:
                sweep_parts(self.path)
                self.file, self._temporary = open_part(self.path)
        except OSError as error:
            raise TableOpenError(self.path, error.errno or 0, "written") from error
        size_bytes = HEADER_BYTES + self.count * self.dtype.itemsize
        try:
            if not self.is_zero:
                self.file.reserve(size_bytes)
            os.ftruncate(self.file.buffered_descriptor, size_bytes)
        except OSError as error:
            self._remove()
            code = error.errno or 0
            raise StorageError("reserve", self.path, 0, size_bytes, code) from error
        except BaseException:
            self._remove()
            raise
        return self

    def write(self, start: int, values: torch.Tensor) -> None:
        """Write numbers in succession from number `start` on; they must stay as they are until `settle`."""
        if values.numel() == 0:
            return
        offset_bytes = HEADER_BYTES + start * self.dtype.itemsize
        ticket = self._engine.write(self.file, offset_bytes, values, why=WHY)
        self._under_way.append((ticket, values))

    def write_runs(
        self, starts: torch.Tensor, values: torch.Tensor, pointers: torch.Tensor
    ) -> None:
        """Write run `r`, which is `values[pointers[r]:pointers[r + 1]]`, from number `starts[r]` on."""
        if values.numel() == 0:
            return
        lengths = pointers.diff().long()
        is_there = lengths > 0
        size = self.dtype.itemsize
        ticket = self._engine.write_many(
            self.file,
            _bytes_of(starts[is_there], size) + HEADER_BYTES,
            _bytes_of(lengths[is_there], size),
            values,
            _bytes_of(pointers[:-1][is_there], size),
            why=WHY,
        )
        self._under_way.append((ticket, values))

    def settle(self) -> None:
        """Return when everything is written."""
        while self._under_way:
            self._under_way[0][0].wait()
            self._under_way.pop(0)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The numbers from `start` to `stop`."""
        values = torch.empty(stop - start, dtype=self.dtype, device="cpu")
        if len(values):
            offset_bytes = HEADER_BYTES + start * self.dtype.itemsize
            self._engine.read(self.file, offset_bytes, values, why=WHY).wait()
        return values

    def finish(self) -> None:
        """Give the file its header and its name."""
        self.settle()
        header = npy_header(self.path, (self.count,), self.dtype)
        self._engine.write(self.file, 0, np.frombuffer(header, np.uint8), why=WHY).wait()
        self.file.sync()
        self._temporary.replace(self.path)
        sync_directory(self.path.absolute().parent)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        with deferred_interrupts:
            self.file.close()
            self._temporary.unlink(missing_ok=True)


def _bytes_of(numbers: torch.Tensor, size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    whole: np.ndarray[tuple[int], np.dtype[np.int64]] = numbers.long().numpy() * size_bytes
    return whole
