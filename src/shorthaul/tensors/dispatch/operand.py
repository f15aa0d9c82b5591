"""A unified tensor as its operators see it: what `dispatch` asks of it, and nothing of how it does that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shorthaul.tensors.tables.table import RowTable


class Operand(torch.Tensor):
    """Rows that operators are asked to work on; `UnifiedTensor` is the one kind."""

    has_memory: bool = True  # false on disk and for quantized rows: no plain tensor shares them

    if TYPE_CHECKING:  # at run time they are the subclass's own

        @property
        def propagate(self) -> bool:
            """Whether operations on unified tensors alone give unified tensors."""

        @property
        def is_read_only(self) -> bool:
            """Whether it lies in memory that cannot be written, or on disk."""

        @property
        def table(self) -> RowTable:
            """The rows as a table."""

        def plain(self) -> torch.Tensor:
            """An ordinary CPU tensor that shares the memory."""

        def as_unified(self, plain: torch.Tensor, *, is_new: bool = False) -> Operand:
            """An ordinary tensor as a unified one of the same kind."""

        def same_rows(self) -> Operand:
            """The same rows as another tensor."""

        def cut_rows(self, span: range) -> Operand:
            """A range of the rows."""

        def gather_plain(self, ids: torch.Tensor) -> torch.Tensor:
            """Rows below autograd, on the CPU."""

        def refusal(self, operation: str, remedy: str = "") -> Exception:
            """The error for an operation that rows without memory cannot do."""
