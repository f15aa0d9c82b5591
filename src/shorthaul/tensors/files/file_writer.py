"""A file written front to back, a few chunks under way at a time, that appears when it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from shorthaul.errors import TableOpenError
from shorthaul.interrupts import deferred_interrupts
from shorthaul.settings import settings
from shorthaul.storage import BufferPool, StorageEngine, Ticket, open_engine
from shorthaul.storage.buffer_pool import Buffer
from shorthaul.tensors.files.part_files import open_part, sweep_parts, sync_directory

WHY = "features written"


@contextlib.contextmanager
def engine_for_files(engine: StorageEngine | None) -> Iterator[StorageEngine]:
    """The engine that was given, else one that is closed at the end."""
    if engine is not None:
        yield engine  # stays the caller's
        return
    # The memory engine keeps what it writes to itself, and a file is what is wanted.
    with open_engine("thread" if settings.engine == "memory" else None) as own:
        yield own


class FileWriter:
    """Bytes appended to a file through aligned buffers, two of which are under way at a time."""

    def __init__(
        self, path: Path, engine: StorageEngine, step_bytes: int, header_bytes: int
    ) -> None:
        self.path, self.engine, self.step_bytes = path, engine, step_bytes
        self.pool = BufferPool(3 * step_bytes + (1 << 20), why=WHY)
        self._offset_bytes, self._header_bytes = header_bytes, header_bytes
        self._buffer: Buffer | None = None
        self._filled_bytes = 0
        self._under_way: list[tuple[Ticket, Buffer]] = []

    def __enter__(self) -> FileWriter:
        try:
            with deferred_interrupts:
                sweep_parts(self.path)
                self.file, self.temporary = open_part(self.path)
        except OSError as error:
            raise TableOpenError(self.path, error.errno or 0, "written") from error
        except BaseException as interrupt:  # then the block, and with it its end, is not reached
            if hasattr(self, "temporary"):
                self.__exit__(type(interrupt), interrupt, None)
            raise
        return self

    def append(self, values: torch.Tensor) -> None:
        """Write the bytes of a contiguous tensor after what was written before."""
        # One element counts as contiguous whatever its stride is, and only a stride of 1 has bytes.
        flat = values.as_strided((values.numel(),), (1,))
        rest = flat.view(torch.uint8) if values.numel() else values.new_empty(0)
        while rest.numel():
            if self._buffer is None:
                self._buffer = self.pool.take(self.step_bytes)
            room = self.step_bytes - self._filled_bytes
            part = rest[:room]
            place = self._buffer.tensor(torch.uint8, part.shape, offset_bytes=self._filled_bytes)
            place.copy_(part)
            self._filled_bytes += part.numel()
            rest = rest[room:]
            if self._filled_bytes == self.step_bytes:
                self._send()

    def finish(self, header: bytes) -> int:
        """Write the rest and the header, and give the file its name; returns its bytes."""
        self._send()
        self._wait(0)
        if header:
            self.engine.write(self.file, 0, _aligned(self.pool, header).memory, why=WHY).wait()
        size_bytes = max(self._offset_bytes, len(header))
        os.ftruncate(self.file.buffered_descriptor, size_bytes)
        self.file.sync()
        self.temporary.replace(self.path)
        sync_directory(self.path.absolute().parent)
        return size_bytes

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with deferred_interrupts:
            try:
                if error is not None:
                    with contextlib.suppress(Exception):  # the first error is the one to tell of
                        self._wait(0)
            finally:
                self.file.close()
                self.pool.close()
                self.temporary.unlink(missing_ok=True)

    def _send(self) -> None:
        if self._buffer is None:
            return
        self._wait(1)
        part = self._buffer.memory[: self._filled_bytes]
        ticket = self.engine.write(self.file, self._offset_bytes, part, why=WHY)
        self._under_way.append((ticket, self._buffer))
        self._offset_bytes += self._filled_bytes
        self._buffer, self._filled_bytes = None, 0

    def _wait(self, left: int) -> None:
        while len(self._under_way) > left:
            ticket, buffer = self._under_way.pop(0)
            ticket.wait()
            buffer.release()


def _aligned(pool: BufferPool, data: bytes) -> Buffer:
    buffer = pool.take(len(data))
    buffer.memory[:] = np.frombuffer(data, np.uint8)
    return buffer
