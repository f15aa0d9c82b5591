"""The memory that a unified tensor and its views share, as one table of bytes: mapped once for all of them."""

from __future__ import annotations

import torch

from shorthaul.tensors.tables.table import HostTable


class WholeMemory:
    """Made with a unified tensor, and handed on to its views.

    >>> memory, rows = WholeMemory(), torch.zeros(4, 3)
    >>> memory.table_of(rows[2:]) is memory.table_of(rows), memory.table_of(rows).shape
    (True, (48,))
    """

    def __init__(self) -> None:
        self._table: HostTable | None = None

    def table_of(self, tensor: torch.Tensor) -> HostTable:
        """All bytes of the storage that `tensor` lies in; made anew when the memory was exchanged."""
        storage = tensor.untyped_storage()
        address, length_bytes = storage.data_ptr(), storage.nbytes()
        known = self._table
        if (
            known is None
            or known.stored.values.data_ptr() != address
            or known.shape != (length_bytes,)
        ):
            flat = torch.empty(0, dtype=torch.uint8, device="cpu")
            self._table = known = HostTable(flat.set_(storage, 0, (length_bytes,), (1,)))
        return known
