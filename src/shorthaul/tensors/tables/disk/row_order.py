"""Where the rows of a reordered table lie: those that were named first, then all others in order.

>>> order = RowOrder(torch.tensor([4, 1]), rows=6)
>>> order.places(torch.tensor([0, 1, 2, 3, 4, 5])).tolist()
[2, 1, 3, 4, 0, 5]
>>> order.ids(torch.arange(6)).tolist()
[4, 1, 0, 2, 3, 5]

Memory is 16 bytes for each row that was named, whatever the table has.
"""

from __future__ import annotations

import os

import torch

from shorthaul.errors import TableFormatError
from shorthaul.tensors.files.layout import WRITE_AGAIN


class RowOrder:
    """Places of rows in a file, by their ids, and ids by places."""

    def __init__(
        self, first: torch.Tensor, rows: int, path: str | os.PathLike[str] = "the file"
    ) -> None:
        self._first = first
        self._sorted, self._places = torch.sort(first)
        is_right = len(first) == 0 or (
            int(self._sorted[0]) >= 0
            and int(self._sorted[-1]) < rows
            and bool((self._sorted.diff() > 0).all())
        )
        if not is_right:
            raise TableFormatError(
                path,
                f"the rows that come first are not different ids of {rows:,} rows",
                WRITE_AGAIN,
            )

    def places(self, ids: torch.Tensor) -> torch.Tensor:
        """Where the rows `ids` lie."""
        count = len(self._first)
        if count == 0:
            return ids
        before = torch.searchsorted(self._sorted, ids)
        at = before.clamp(max=count - 1)
        return torch.where(self._sorted[at] == ids, self._places[at], ids - before + count)

    def ids(self, places: torch.Tensor) -> torch.Tensor:
        """Which rows lie at `places`."""
        count = len(self._first)
        if count == 0:
            return places
        numbers = torch.arange(count, dtype=torch.int64, device="cpu")
        others = places - count
        passed = torch.searchsorted(self._sorted - numbers, others, right=True)
        return torch.where(
            places < count, self._first[places.clamp(max=count - 1)], others + passed
        )
