"""A unified tensor as its operators see it: what `dispatch` asks of it, and nothing of how it does that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shorthaul.tensors.cuda.gather import view_for_device, wait_for_readers
from shorthaul.tensors.tables.table import HostTable, RowTable


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

        @property
        def memory(self) -> HostTable:
            """All bytes of the memory that it lies in."""

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

    def seen_by(self, device: torch.device) -> torch.Tensor | None:
        """The values where they lie, as a GPU reads them; `None` where it cannot.

        Args:
            device: The GPU.
        """
        if device.type != "cuda" or not self.has_memory:
            return None
        return view_for_device(self.memory, _borrow(self), device)

    def wait_for_readers(self) -> None:
        """Return when no GPU reads the memory any more: before the host writes to it."""
        if self.has_memory:
            wait_for_readers(_borrow(self))


class AsPlain(torch.autograd.Function):
    """The same memory as an ordinary tensor, for gradients to flow through."""

    @staticmethod
    def forward(ctx: Any, whole: Operand) -> torch.Tensor:  # noqa: ARG004
        """The memory itself."""
        return _borrow(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """The gradient, as it is."""
        return gradients[0]


def _borrow(operand: Operand) -> torch.Tensor:
    with torch._C._DisableTorchDispatch():
        return operand.detach()
