"""One saved storage on its way out of memory and back.

A record's state only moves forward::

    KEPT                                  decided at packing, or the disk would not take it
    KEPT -> STORED                        the room was needed for others
    STORING -> STORED                     the bytes are safe on disk; memory is given up only now
    STORING -> KEPT                       needed before it was written, the write failed, or it is
                                          another process that writes

Bringing it back is not a state: it may happen any number of times (retain_graph), and what is back
belongs to whoever uses it.

The packed object that autograd keeps is a `Handle`. Its lifetime is the graph's, and a record's is
that of its handles: a dropped graph, an exception in forward or a finished backward frees what it
should, with nothing to reset. What a record holds on disk and in the books is in its `Holdings`, which
outlive it: it dies inside of PyTorch, where Python code would swallow an interrupt, so that a
`Farewell` tells of it without any, and the store gives back later what was held.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.errors import InPlaceChangeError
from shorthaul.offload.codecs.compression import Codec
from shorthaul.offload.device.copies import CopyOut
from shorthaul.offload.drive.spool import Slot
from shorthaul.offload.saved.identity import (
    StorageKey,
    StorageReference,
    VersionWitness,
    View,
    find_owner,
)
from shorthaul.storage.buffer_pool import Buffer
from shorthaul.storage.engine import Ticket


class State(enum.Enum):
    """Where the bytes of a record are."""

    KEPT = "kept"
    STORING = "storing"
    STORED = "stored"


_ALLOWED = {
    (State.STORING, State.STORED),
    (State.STORING, State.KEPT),
    (State.KEPT, State.STORED),
}


@dataclass(eq=False)
class Load:
    """A record's bytes on their way back: a buffer, and tickets that fill it."""

    buffer: Buffer
    tickets: tuple[Ticket, ...]


@dataclass(eq=False)
class Holdings:
    """What has to be given back when a record is gone."""

    key: StorageKey
    original: StorageReference
    state: State
    slots: tuple[Slot, ...] = ()
    stores: tuple[Ticket, ...] = ()
    loads: tuple[Ticket, ...] = ()
    counted_bytes: int = 0  # of the range, where it is among the kept ones
    packed_bytes: int = 0  # of the payload, where it stays in memory packed
    restored: StorageReference | None = None  # the storage handed out last, if it still lives

    def start_afresh(self) -> None:
        """In a forked child: transfers are the parent's. What is being written is in memory here too."""
        self.loads = ()
        if self.state is State.STORING:
            self.state, self.slots, self.stores = State.KEPT, (), ()


@dataclass(eq=False)
class Record:
    """One range of one storage that autograd saved, in one or more tensors."""

    label: str  # what it is, for people: dtype and shape of the first tensor, and its module
    scope: str
    position: int  # in the order of packing of its forward pass
    holdings: Holdings
    forward_pass: Any | None = None  # the one it was packed in, where that is learned from
    kept: torch.Tensor | None = None  # KEPT: the bytes, in the storage they were found in
    buffer: Buffer | None = None  # STORING, or KEPT after a store that did not happen
    payload_bytes: int = 0  # what is written: the range, or the range compressed
    codec: Codec | None = None  # how the payload was compressed, if it was
    dtype: torch.dtype = torch.uint8  # of the numbers that were compressed
    row: Sequence[int] = ()  # and how many of them make a row
    checksum: int = 0  # of the payload
    content_sum: int = 0  # of the range as it was saved
    held: torch.UntypedStorage | None = None  # handed out last, kept for handles yet to be used
    waiting_handles: int = 0  # that have not been used
    load: Load | None = None  # a prefetch that nobody has asked for yet
    device: torch.device | None = None  # where the bytes go back to, if that is a GPU
    arrival: CopyOut | None = None  # their way from there to the buffer, until it is over
    returned: Any = None  # the mark behind the copy that brought them back last
    saved: weakref.ref[torch.Tensor] | None = None  # on a GPU, what the first tensor is a view of

    @property
    def key(self) -> StorageKey:
        """Which range it is."""
        return self.holdings.key

    @property
    def state(self) -> State:
        """Where its bytes are."""
        return self.holdings.state

    @property
    def size_bytes(self) -> int:
        """Bytes of the range."""
        return self.key.length_bytes

    def has_owner_of(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` counts its versions with what was saved on a GPU."""
        return self.saved is not None and self.saved() is find_owner(tensor)

    def find_original(self) -> torch.UntypedStorage | None:
        """The storage that the bytes were saved from, if somebody still holds it."""
        return self.holdings.original.revive(self.key.start_bytes + self.size_bytes)

    def move_to(self, state: State) -> None:
        """Change state, in an allowed direction only."""
        if (self.state, state) not in _ALLOWED:
            raise ValueError(f"a record cannot go from {self.state.value} to {state.value}")
        self.holdings.state = state

    def begin_load(self, buffer: Buffer, tickets: tuple[Ticket, ...]) -> None:
        """Its bytes are on their way back."""
        self.load, self.holdings.loads = Load(buffer, tickets), tickets

    def end_load(self) -> None:
        """They are here, or are not wanted any more."""
        self.load, self.holdings.loads = None, ()


class Farewell(weakref.ref[Record]):
    """Tells when a record is gone, and what it leaves behind; its callback must be written in C."""

    __slots__ = ("holdings",)

    holdings: Holdings


class Handle:
    """What autograd keeps in place of a saved tensor."""

    __slots__ = ("__weakref__", "is_used", "record", "view", "witness")

    def __init__(self, record: Record, view: View, witness: VersionWitness) -> None:
        self.record, self.view, self.witness = record, view, witness
        self.is_used = False
        record.waiting_handles += 1

    def note_use(self) -> None:
        """Autograd asks for it; only the first time counts."""
        if not self.is_used:
            self.is_used = True
            self.record.waiting_handles -= 1

    def require_unchanged(self) -> None:
        """Raise autograd's error for a tensor that was changed in place after it was saved."""
        current = self.witness.current_version
        if current != self.witness.version:
            raise InPlaceChangeError(self.witness.description, current, self.witness.version)
