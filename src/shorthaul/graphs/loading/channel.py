"""A bounded way from one thread to the next that either end may close."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ClosedError(Exception):
    """The channel was closed; nothing more comes through, and nobody outside learns of it."""


class Channel(Generic[Item]):
    """Hands items over in order; `put` waits while `room` items wait to be taken.

    >>> channel = Channel[int](room=2)
    >>> channel.put(1)
    >>> channel.get()
    1
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: deque[Item] = deque()
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        """Hand `item` over; `ClosedError` when nobody wants it any more."""
        with self._changed:
            while len(self._items) >= self._room and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise ClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item:
        """The next item; `ClosedError` when none will come."""
        with self._changed:
            while not self._items and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise ClosedError
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Wake and turn away both ends, and let go of what was on its way."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
