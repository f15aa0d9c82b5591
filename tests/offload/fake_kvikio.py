"""kvikio's interface over plain system calls, for host memory and tensors that stand for a device's."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch


class IOFuture:
    def __init__(self, done: Any) -> None:
        self._done = done

    def get(self) -> int:
        return int(self._done.result())

    def done(self) -> bool:
        return bool(self._done.done())


class FakeKvikio:
    """`CuFile` opens by path, moves in threads, and may be told to fail or to move little."""

    def __init__(self, *, largest_bytes: int = 2**62) -> None:
        self.largest_bytes = largest_bytes
        self.errors: list[Exception] = []
        self.opened: list[tuple[str, str]] = []
        self.closed = 0

    def CuFile(self, path: str, flags: str = "r") -> CuFile:  # noqa: N802  (kvikio's name)
        self.opened.append((path, flags))
        return CuFile(self, path, flags)


class CuFile:
    def __init__(self, owner: FakeKvikio, path: str, flags: str) -> None:
        self._owner = owner
        self._descriptor = os.open(path, os.O_RDONLY if flags == "r" else os.O_RDWR)
        self._threads = ThreadPoolExecutor(1)

    def pread(self, buf: Any, size: int, file_offset: int = 0) -> IOFuture:
        memory = _as_array(buf)

        def read() -> int:
            content = os.pread(self._descriptor, min(size, self._owner.largest_bytes), file_offset)
            memory[: len(content)] = np.frombuffer(content, np.uint8)
            return len(content)

        return self._start(read)

    def pwrite(self, buf: Any, size: int, file_offset: int = 0) -> IOFuture:
        memory = _as_array(buf)

        def write() -> int:
            count = min(size, self._owner.largest_bytes)
            return os.pwrite(self._descriptor, memory[:count].tobytes(), file_offset)

        return self._start(write)

    def close(self) -> None:
        self._owner.closed += 1
        self._threads.shutdown()
        os.close(self._descriptor)

    def _start(self, move: Callable[[], int]) -> IOFuture:
        def run() -> int:
            if self._owner.errors:
                raise self._owner.errors.pop(0)
            return move()

        return IOFuture(self._threads.submit(run))


def _as_array(memory: Any) -> Any:
    return memory.numpy() if isinstance(memory, torch.Tensor) else memory
