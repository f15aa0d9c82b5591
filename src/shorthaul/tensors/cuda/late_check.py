"""What gathers on a device were given, asked for when it costs no wait.

A kernel reads no row for an id that is out of range; it leaves the position of the id in a flag on the device.
The host goes on at once. Behind every gather the flag is copied to pinned memory, and whoever gathers next from
the table looks whether the copy is over::

    gather   kernel ── copy of the flag ──mark                 raises what the flag says
    next                                       mark passed? ───┘

A CUDA graph that captures gathers has the kernels in it and no looking: `require_clear` looks after a replay.
With `SHORTHAUL_DEVICE_CHECKS=at_once` the host waits for each gather, and errors name the id.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from shorthaul.errors import LateRowIndexError, RowArgumentError, RowIndexError
from shorthaul.jit.launching.device_guard import is_capturing
from shorthaul.settings import settings

NO_BAD_POSITION = 2**63 - 1  # in a flag that nothing was left in


def make_host_memory() -> torch.Tensor:
    """Where a flag is copied to without the host's waiting."""
    return torch.empty(2, dtype=torch.int64, pin_memory=True, device="cpu")


class LateCheck:
    """The flags of one table and its slices on one device: the smallest wrong position, and of segments."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._flags = torch.full((2,), NO_BAD_POSITION, dtype=torch.int64, device=device)
        self._lock = threading.Lock()
        self._seen: torch.Tensor | None = None
        self._mark: Any = None  # behind the copy that is under way
        if device.type == "cuda":
            self._seen = make_host_memory()
            torch.cuda.current_stream(device).synchronize()  # other streams will use the flags

    @property
    def position(self) -> torch.Tensor:
        """Where kernels leave the smallest position of a wrong id."""
        return self._flags[:1]

    @property
    def is_late(self) -> bool:
        """Whether errors come out later, as far as the settings say; on the CPU they never do."""
        return self.device.type == "cuda" and settings.device_checks == "late"

    def raise_if_over(self) -> None:
        """Raise for gathers that are over and were given something wrong; waits for none."""
        with self._lock:
            if self._mark is None or is_capturing(self.device) or not self._mark.query():
                return
            self._mark = None
            assert self._seen is not None, "a mark is behind a copy"
            self._raise_if_wrong(*self._seen.tolist())

    def note_launch(self, ids: torch.Tensor, rows: int) -> None:
        """A kernel with these ids of so many rows was launched on the current stream."""
        if not self.is_late:
            position = int(self.position)
            if position != NO_BAD_POSITION:
                self._flags.fill_(NO_BAD_POSITION)
                raise RowIndexError(int(ids[position]), position, rows)
            return
        with self._lock:
            if self._mark is None and self._seen is not None and not is_capturing(self.device):
                self._seen.copy_(self._flags, non_blocking=True)
                self._mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._mark.record()

    def note_segments(self, pointers: torch.Tensor, count: int) -> None:
        """Look, on the device, whether `pointers` ascend from 0 to `count`."""
        ends = (pointers[0] != 0) | (pointers[-1] != count)
        is_wrong = ends | (pointers.diff() < 0).any()
        self._flags[1:].copy_(torch.where(is_wrong, 0, self._flags[1]))

    def require_clear(self) -> None:
        """Wait for the device, and raise if a gather so far was given something wrong."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        with self._lock:
            self._mark = None
            self._raise_if_wrong(*self._flags.tolist())

    def _raise_if_wrong(self, position: int, segments: int) -> None:
        if position == segments == NO_BAD_POSITION:
            return
        self._flags.fill_(NO_BAD_POSITION)
        if position != NO_BAD_POSITION:
            raise LateRowIndexError(position, str(self.device))
        raise RowArgumentError(
            f"pointers of an earlier gather_reduce on {self.device}",
            "ascending from 0 to the number of ids",
            "others",
        )
