"""The ticket of a gather from disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from shorthaul.interrupts import PatientLock
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.tensors.tables.table import GatherTicket


class Reading(Protocol):
    """Requests under way for one gather."""

    def finish(self) -> None:
        """Wait for them and place their rows; to be called again if an interrupt came out."""


class DiskTicket(GatherTicket):
    """Rows that are being read; after an interrupt, waiting goes on where it was."""

    def __init__(self, start: Callable[[], Reading], finish: Callable[[], torch.Tensor]) -> None:
        self._finish = finish
        self._reading: Reading | None = None
        self._rows: torch.Tensor | None = None
        self._error: Exception | None = None
        self._lock = PatientLock()
        try:
            self._reading = start()
        except Exception as error:
            self._error = error

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._rows is not None or self._error is not None

    @alone_after_fork
    def wait(self) -> torch.Tensor:
        """The rows, or the error that kept them away."""
        with self._lock:
            if not self.done:
                self._end()
        if self._error is not None:
            raise self._error
        assert self._rows is not None
        return self._rows

    def _end(self) -> None:
        try:
            if self._reading is not None:
                self._reading.finish()
                self._reading = None
            self._rows = self._finish()
        except Exception as error:
            self._error, self._reading = error, None
