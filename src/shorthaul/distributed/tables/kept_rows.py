"""Rows of other ranks that stay here, because coming batches are known to ask for them again.

>>> kept = KeptRows(row_bytes=2, budget_bytes=4)
>>> for ids in ([3, 5, 8], [3, 8]):
...     kept.expect(torch.tensor(ids))
>>> _, missing = kept.look_up(torch.tensor([3, 5, 8]))
>>> kept.keep(torch.tensor([3, 5, 8]), torch.tensor([[1, 1], [2, 2], [3, 3]], dtype=torch.uint8))
>>> kept.look_up(torch.tensor([3, 8]))
(tensor([[1, 1],
        [3, 3]], dtype=torch.uint8), tensor([], dtype=torch.int64))

What is kept is what coming batches use soonest, within a budget, in the bytes in which it traveled.
"""

from __future__ import annotations

import torch

from shorthaul.tensors.tables.disk.row_cache import RowCache


class KeptRows:
    """A cache of one table's rows that is told of batches ahead. Not for two threads at once."""

    def __init__(self, row_bytes: int, budget_bytes: int) -> None:
        self._cache = RowCache("belady", budget_bytes=budget_bytes, row_bytes=max(1, row_bytes))
        self._row_bytes = row_bytes

    def expect(self, ids: torch.Tensor) -> None:
        """A batch after those that were told before will look up `ids`, int64 and all different."""
        self._cache.expect(ids.contiguous())

    def forget_expected(self) -> None:
        """The rest of what was told will not come."""
        self._cache.forget_expected()

    def look_up(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A row of bytes for each id, and the positions of those that are missing, still to be filled."""
        slots = self._cache.look_up(ids.contiguous())
        data = torch.empty((len(ids), self._row_bytes), dtype=torch.uint8, device="cpu")
        is_here = slots >= 0
        data[is_here] = self._cache.rows[slots[is_here]][:, : self._row_bytes]
        return data, (~is_here).nonzero()[:, 0]

    def keep(self, ids: torch.Tensor, data: torch.Tensor) -> None:
        """Rows that were missing; those that are worth it stay."""
        slots = self._cache.admit(ids.contiguous())
        is_worth = slots >= 0
        self._cache.rows[slots[is_worth], : self._row_bytes] = data[is_worth]
