"""What a table's gathers cost: rows by where they came from, bytes on the wire in both directions."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from shorthaul.meter import record_move
from shorthaul.units import format_bytes

WHY = "rows of other ranks"
_counting = threading.Lock()  # a loader's thread and one that gathers count for the same table


@dataclass
class Traffic:
    """Counts since a table was made, or since `reset`."""

    exchanges: int = 0  # gathers, each a round of all ranks
    asked_rows: int = 0  # ids that were asked for
    unique_rows: int = 0  # after repeated ones of a gather were left out
    near_rows: int = 0  # of these: read from files on this machine
    hot_rows: int = 0  # from the copies that every rank has
    kept_rows: int = 0  # fetched for an earlier batch and kept
    far_rows: int = 0  # sent by other ranks
    served_rows: int = 0  # sent to other ranks
    far_sums: int = 0  # sums that other ranks made of rows of theirs, and sent
    served_sums: int = 0  # the same, sent to other ranks
    received_bytes: int = 0  # from other ranks: rows, ids, and 32 bytes for each rank and round
    sent_bytes: int = 0  # to other ranks, the same
    largest_error: float = 0.0  # of a value that this rank sent in a format of fewer bytes

    def add(self, **counts: int) -> None:
        """Count more, from any thread.

        Args:
            counts: By the names of the fields.
        """
        with _counting:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def note_error(self, error: float) -> None:
        """An error of a value that was sent, from any thread.

        Args:
            error: Its size.
        """
        with _counting:
            self.largest_error = max(self.largest_error, error)

    def note_round(self, received_bytes: int, sent_bytes: int) -> None:
        """Bytes that were on the wire.

        Args:
            received_bytes: From other ranks.
            sent_bytes: To other ranks.
        """
        self.add(received_bytes=received_bytes, sent_bytes=sent_bytes)
        record_move("other ranks", "memory", received_bytes, WHY)
        record_move("memory", "other ranks", sent_bytes, WHY)

    def reset(self) -> None:
        """Begin anew."""
        with _counting:
            vars(self).update(vars(Traffic()))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def table(self) -> Table:
        """The same as a table for `rich.print`."""
        table = Table(title="rows and bytes of one rank", title_justify="left")
        table.add_column("what")
        table.add_column("count", justify="right")
        for name, value in self.to_dict().items():
            if name.endswith("_bytes"):
                shown = format_bytes(value)
            else:
                shown = f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
            table.add_row(name.replace("_", " "), shown)
        return table
