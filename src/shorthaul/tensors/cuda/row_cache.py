"""Hot rows in device memory, in front of rows in host memory.

Which rows are hot is decided once, by degree or by counted use. The plan is a map from row numbers
to slots; the gather kernels look an id up in it and read the row from one place or the other.

>>> plan = plan_hot_rows(torch.tensor([3, 9, 1, 9]), budget_bytes=1024, row_bytes=512)
>>> plan.hot_ids, plan.slots
(tensor([1, 3]), tensor([-1,  0, -1,  1], dtype=torch.int32))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.tensors.kernels.stored_rows import StoredRows

NOT_CACHED = -1


@dataclass(frozen=True, eq=False)
class HotRowPlan:
    """Which rows lie in device memory, and in which slot."""

    hot_ids: torch.Tensor  # ascending; row `hot_ids[slot]` lies in `slot`
    slots: torch.Tensor  # int32, one for each row of the table: its slot, or -1

    @property
    def index_bytes(self) -> int:
        """Device memory that the map itself takes: four bytes for each row of the table."""
        return self.slots.nbytes

    def hit_rate(self, ids: torch.Tensor) -> float:
        """The share of `ids` (not negative) that would be read from device memory."""
        if len(ids) == 0:
            return 0.0
        return float((self.slots[ids.long()] != NOT_CACHED).double().mean())


def plan_hot_rows(uses: torch.Tensor, *, budget_bytes: int, row_bytes: int) -> HotRowPlan:
    """Keep the rows used most, as many as fit `budget_bytes`; of equal ones those that come first.

    `uses` has one number for each row of the table: its degree, or how often it was asked for.
    """
    count = min(len(uses), max(0, budget_bytes) // max(1, row_bytes))
    most_used = torch.sort(uses, descending=True, stable=True).indices[:count]
    hot_ids = torch.sort(most_used).values
    slots = torch.full((len(uses),), NOT_CACHED, dtype=torch.int32, device="cpu")
    slots[hot_ids] = torch.arange(count, dtype=torch.int32, device="cpu")
    return HotRowPlan(hot_ids, slots)


@dataclass(frozen=True, eq=False)
class DeviceRowCache:
    """The hot rows themselves, as they are stored, and the map, in device memory."""

    values: torch.Tensor  # (slots, *row_shape), contiguous, of the dtype that the table stores
    slots: torch.Tensor

    @classmethod
    def fill(cls, rows: StoredRows, plan: HotRowPlan, device: torch.device | str) -> DeviceRowCache:
        """Copy the hot rows of a table in host memory to `device`. Scales stay with the table."""
        values = rows.values[plan.hot_ids].contiguous()
        return cls(values.to(device), plan.slots.to(device))
