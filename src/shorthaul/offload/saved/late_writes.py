"""Saved tensors that an operator may still be writing to.

Autograd saves the inputs of an operator before it runs. An input is nearly always complete by then,
but `rrelu` is given an empty tensor for its noise, and fills it without a new version: a copy made
while saving would hold nothing of it. Only tensors outside of the graph are used in this way, so
those are looked at a second time, once the operator is over, before they are let go.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]

from shorthaul.offload.saved.record import Record


@dataclass(frozen=True, eq=False)
class _Watched:
    record: weakref.ref[Record]
    content: torch.Tensor  # the bytes that were saved; keeps their memory
    thread: int
    sequence: int

    @property
    def is_over(self) -> bool:
        """Whether the operator that saved it has surely returned: its thread began another."""
        return self.thread == threading.get_ident() and self.sequence < _get_sequence_nr()


class UnfinishedTensors:
    """Keeps the memory of some saved tensors until their operator is over."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, record: Record, content: torch.Tensor) -> None:
        """An operator is saving `content`, which was copied for `record`."""
        self._watched[next(self._numbers)] = _Watched(
            weakref.ref(record), content, threading.get_ident(), _get_sequence_nr()
        )

    def watches(self, record: Record) -> bool:
        """Whether the operator that saved it may still be running."""
        return any(each.record() is record for each in self._watched.values())

    def finish(
        self,
        look_again: Callable[[Record, torch.Tensor], None],
        *,
        is_outside_operators: bool,
    ) -> None:
        """Show those that are still needed and whose operators are over, with their content now.

        The number that each operator draws when it starts tells one from the next. Outside of
        operators, as in a backward pass, all are over. One for which `look_again` raises is shown
        again the next time.
        """
        for number, each in list(self._watched.items()):
            record = each.record()
            if record is not None:
                if not is_outside_operators and not each.is_over:
                    continue
                look_again(record, each.content)
            del self._watched[number]
