"""The storage engine that all tables of a process read with, unless they were given another."""

from __future__ import annotations

import os

from shorthaul.interrupts import PatientLock
from shorthaul.storage import StorageEngine, open_engine

_lock = PatientLock()
_engines: list[StorageEngine] = []


def shared_engine() -> StorageEngine:
    """The engine of this process, opened when it is first asked for."""
    with _lock:
        if not _engines:
            _engines.append(open_engine())
        return _engines[0]


def _start_afresh() -> None:
    # A lock held by another thread at the fork would be held forever in the child.
    global _lock
    _lock = PatientLock()


os.register_at_fork(after_in_child=_start_afresh)
