"""Saved tensors that an operator may still be writing to.

Autograd saves the inputs of an operator before it runs. An input is nearly always complete by then,
but `rrelu` is given an empty tensor for its noise, and fills it without a new version: a copy made
while saving would hold nothing of it. Only tensors outside of the graph are used in this way, so
those are looked at a second time, once the operator is over, before they are let go.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import torch
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]

from shorthaul.offload.record import Record


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
        self._watched: list[_Watched] = []

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, record: Record, content: torch.Tensor) -> None:
        """An operator is saving `content`, which was copied for `record`."""
        self._watched.append(
            _Watched(
                weakref.ref(record),
                content,
                threading.get_ident(),
                _get_sequence_nr(),
            )
        )

    def watches(self, record: Record) -> bool:
        """Whether the operator that saved it may still be running."""
        return any(each.record() is record for each in self._watched)

    def take_finished(self, *, is_outside_operators: bool) -> list[tuple[Record, torch.Tensor]]:
        """Records that are still needed and whose operators are over, with their content now.

        The number that each operator draws when it starts tells one from the next. Outside of
        operators, as in a backward pass, all are over.
        """
        if not self._watched:
            return []
        watched, self._watched = self._watched, []
        finished: list[tuple[Record, torch.Tensor]] = []
        for each in watched:
            record = each.record()
            if record is None:
                continue
            if is_outside_operators or each.is_over:
                finished.append((record, each.content))
            else:
                self._watched.append(each)
        return finished
