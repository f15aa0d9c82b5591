"""A range of a table's rows as a table of its own: nothing is read until rows are asked for.

>>> from shorthaul.tensors.tables.table import HostTable
>>> middle = RowRange(HostTable(torch.arange(10.0)), range(2, 8, 2))
>>> middle.shape, middle.gather(torch.tensor([-1, 0]))
((3,), tensor([6., 2.]))
"""

from __future__ import annotations

import torch

from shorthaul.tensors.kernels.plain_rows import Reduction
from shorthaul.tensors.tables.table import GatherTicket, RowTable, TableStats, plain_ids


class RowRange(RowTable):
    """Rows `span` of `table`; the two share file, cache and counts."""

    def __init__(self, table: RowTable, span: range) -> None:
        self.table: RowTable = table
        self.span = span
        if isinstance(table, RowRange):  # a range of a range is a range of the first table
            # (Not `table.span[start:stop:step]`: a stop of -1 would count from the end.)
            first, step = table.span.start, table.span.step
            self.table = table.table
            self.span = range(first + span.start * step, first + span.stop * step, span.step * step)
        self.kind = table.kind
        self.shape = (len(span), *table.shape[1:])
        self.dtype = table.dtype
        self.stored_row_bytes = table.stored_row_bytes

    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows that `ids` name, counted from the range's start."""
        return self.table.gather(self._ids(ids), out)

    def gather_reduce(
        self,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: Reduction = "sum",
        weights: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One row for each segment of `ids`: the sum, mean or maximum of its rows."""
        return self.table.gather_reduce(pointers, self._ids(ids), op, weights, out)

    def gather_linear(
        self,
        ids: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`linear(rows, weight, bias)`, without the matrix of gathered rows ever being built."""
        return self.table.gather_linear(self._ids(ids), weight, bias, out)

    def scatter_(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Write over the rows that `ids` name, where the table can be written."""
        self.table.scatter_(self._ids(ids), rows)

    def tensor(self) -> torch.Tensor | None:
        """The range as a plain tensor that shares the table's memory; `None` where there is none."""
        whole = self.table.tensor()
        return None if whole is None else whole[self.span.start : self.span.stop : self.span.step]

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` of the range as a plain tensor."""
        part = self.span[start:stop]
        if part.step == 1:
            return self.table.read(part.start, part.stop)
        return self.table.gather(
            torch.arange(part.start, part.stop, part.step, dtype=torch.int64, device="cpu")
        )

    def prefetch(self, ids: torch.Tensor) -> GatherTicket:
        """Start gathering, and return a ticket for the rows."""
        return self.table.prefetch(self._ids(ids))

    def stats(self) -> TableStats:
        """What has been asked of the whole table so far."""
        return self.table.stats()

    def close(self) -> None:
        """Nothing: whoever opened the table closes it."""

    def _ids(self, ids: torch.Tensor) -> torch.Tensor:
        return plain_ids(ids, len(self.span)).long() * self.span.step + self.span.start
