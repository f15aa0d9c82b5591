"""A CUDA runtime that maps nothing, keeps CUDA's rules, and remembers what was asked of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from shorthaul.tensors.cuda.runtime import (
    ALREADY_REGISTERED,
    MAPPED,
    NOT_REGISTERED,
    OUT_OF_MEMORY,
    PORTABLE,
    READ_ONLY,
    SUCCESS,
)
from shorthaul.tensors.memory.dlpack import tensor_at

INVALID_VALUE = 1


class FakeCudaRuntime:
    """Devices see host memory `shift_bytes` further on; whole pages, never two times.

    `answers` overrides the next answers of a call, by its name. `last_error` is what PyTorch would
    find: a call that failed leaves it, and only `clear_error` takes it away.
    """

    def __init__(
        self,
        *,
        page_bytes: int = 4096,
        shift_bytes: int = 0,
        lock_limit_bytes: int | None = None,
    ) -> None:
        self.page_bytes, self.shift_bytes = page_bytes, shift_bytes
        self.lock_limit_bytes = lock_limit_bytes
        self.ranges: dict[int, int] = {}  # first byte -> stop
        self.calls: list[tuple[object, ...]] = []
        self.read_only: dict[int, bool] = {}  # how each address was registered last
        self.answers: dict[str, deque[int]] = {}
        self.last_error = SUCCESS
        self.reads: Callable[[torch.Tensor], torch.Tensor] = lambda memory: memory

    @property
    def registered_bytes(self) -> int:
        return sum(stop - start for start, stop in self.ranges.items())

    def answer_next(self, call: str, *codes: int) -> None:
        self.answers.setdefault(call, deque()).extend(codes)

    def _answer(self, call: str, code: int) -> int:
        queued = self.answers.get(call)
        if queued:
            code = queued.popleft() or code
        if code != SUCCESS:
            self.last_error = code
        return code

    def register(self, address: int, length_bytes: int, flags: int) -> int:
        self.calls.append(("register", address, length_bytes))
        assert address % self.page_bytes == 0
        assert length_bytes % self.page_bytes == 0
        assert length_bytes > 0
        assert flags & ~READ_ONLY == PORTABLE | MAPPED
        self.read_only[address] = bool(flags & READ_ONLY)
        stop = address + length_bytes
        code = SUCCESS
        if any(first < stop and address < last for first, last in self.ranges.items()):
            code = ALREADY_REGISTERED
        elif (
            self.lock_limit_bytes is not None
            and self.registered_bytes + length_bytes > self.lock_limit_bytes
        ):
            code = OUT_OF_MEMORY
        code = self._answer("register", code)
        if code == SUCCESS:
            self.ranges[address] = stop
        return code

    def unregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        code = self._answer("unregister", SUCCESS if address in self.ranges else NOT_REGISTERED)
        if code == SUCCESS:
            del self.ranges[address]
        return code

    def device_pointer(self, address: int) -> tuple[int, int]:
        is_known = any(first <= address < last for first, last in self.ranges.items())
        code = self._answer("device_pointer", SUCCESS if is_known else INVALID_VALUE)
        return code, address + self.shift_bytes if code == SUCCESS else 0

    def describe(self, code: int) -> str:
        return {OUT_OF_MEMORY: "out of memory"}.get(code, "some words")

    def clear_error(self) -> None:
        self.last_error = SUCCESS

    def synchronize(self, device: torch.device) -> None:
        self.calls.append(("synchronize", str(device)))

    def view(
        self, pointer: int, length_bytes: int, device: torch.device, keeper: object
    ) -> torch.Tensor:
        address = pointer - self.shift_bytes
        first = address // self.page_bytes * self.page_bytes
        for page in range(first, address + length_bytes, self.page_bytes):
            assert any(start <= page < stop for start, stop in self.ranges.items()), "not mapped"
        memory = tensor_at(address, length_bytes, torch.device("cpu"), keeper=keeper)
        return self.reads(memory)
