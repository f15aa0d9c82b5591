"""Stores at a fork: none of them is half-way through anything, and the child has its own.

The hooks are registered after those of the storage engines. So they run before these when a fork is
prepared, when a lock may be held by somebody who waits for an engine, and after them in the child,
where an engine must be new before anything else is.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import Protocol

from shorthaul.interrupts import PatientLock
from shorthaul.offload.drive.spool import SpoolSet
from shorthaul.storage import engine as _registered_before  # noqa: F401


class Forkable(Protocol):
    """What lives on in both processes."""

    lock: PatientLock
    spools: SpoolSet

    def start_afresh(self) -> None:
        """In the child, with the lock held: forget what is the parent's."""


class _Forking(threading.local):
    """What a thread holds while it forks."""

    def __init__(self) -> None:
        self.held: list[Forkable] = []


_numbers = itertools.count()
# Locked in the order in which they were made, by whoever forks.
_living: weakref.WeakValueDictionary[int, Forkable] = weakref.WeakValueDictionary()
_forking = _Forking()


def watch_forks(store: Forkable) -> None:
    """Prepare a store for each fork from now on."""
    _living[next(_numbers)] = store


def _before_fork() -> None:
    for reference in _living.valuerefs():
        store = reference()
        if store is not None:
            # Python ignores what is raised in here, and forks: an interrupt must wait.
            store.lock.acquire_first()
            _forking.held.append(store)
            store.spools.prepare_for_fork()


def _after_fork_in_parent() -> None:
    while _forking.held:
        _forking.held.pop().lock.release()


def _after_fork_in_child() -> None:
    for store in _forking.held:
        store.start_afresh()
    _after_fork_in_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
