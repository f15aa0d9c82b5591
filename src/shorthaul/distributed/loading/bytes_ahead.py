"""How much memory batches may hold that were made ahead of the one that is trained on.

>>> ahead = BytesAhead(100)
>>> ahead.take(80)
>>> ahead.held_bytes
80
>>> ahead.give_back(80)
>>> ahead.take(120)  # one batch is always let through
"""

from __future__ import annotations

import threading


class BytesAhead:
    """Whoever wants more than is left waits until the loop has taken a batch, or does not want them any more."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._is_open = False
        self._changed = threading.Condition()

    def take(self, count_bytes: int) -> None:
        """Wait for room, and take it."""
        with self._changed:
            while self.held_bytes and self.held_bytes + count_bytes > self.most_bytes:
                if self._is_open:
                    return
                self._changed.wait()
            self.held_bytes += count_bytes

    def give_back(self, count_bytes: int) -> None:
        """A batch was taken."""
        with self._changed:
            self.held_bytes -= count_bytes
            self._changed.notify_all()

    def open(self) -> None:
        """Let everything through: nobody wants the batches any more."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()
