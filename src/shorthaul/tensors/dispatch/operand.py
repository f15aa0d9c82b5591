"""A unified tensor as its operators see it: what `dispatch` asks of it, and nothing of how it does that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shorthaul.errors import UnifiedSourceError
from shorthaul.jit.outside_graphs import outside_graphs
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

    # As a parameter it stays where it is, also when its module is moved.

    @outside_graphs
    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As for every tensor; `.to("unified")` is the tensor itself.

        A parameter stays in host memory, and only its dtype changes: `module.to("cuda")` moves the
        others. `u.detach().to("cuda")` copies.

        Args:
            args: As for `torch.Tensor.to`, or `"unified"`.
            kwargs: As for `torch.Tensor.to`.
        """
        device = kwargs.get("device", args[0] if args else None)
        if len(args) + len(kwargs) == 1 and isinstance(device, str | torch.device):
            if str(device).partition(":")[0] == "unified":
                return self
            if not self.has_memory and torch.device(device).type == "cpu":
                return self.cpu()
        if is_parameter(self):
            _, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
            if dtype in (None, self.dtype) and memory_format is None:
                return self
            args, kwargs = (dtype or self.dtype,), {"memory_format": memory_format}
        if kwargs.get("memory_format", ...) is None:
            del kwargs["memory_format"]
        return super().to(*args, **kwargs)

    @property
    def data(self) -> Any:
        """As of every tensor; only memory of the host takes its place, or `UnifiedSourceError`."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, memory: torch.Tensor) -> None:
        if memory.device.type not in ("cpu", "meta"):
            raise UnifiedSourceError(
                "u.data = tensor",
                "a tensor in host memory",
                f"one on {memory.device}",
                "Parameters that are unified stay where they are: `module.to_empty` cannot move them.",
            )
        torch.Tensor.data.__set__(self, memory)  # type: ignore[attr-defined]

    def cuda(self, *args: Any, **kwargs: Any) -> Any:
        """A copy on a GPU; of a parameter itself, which stays in host memory.

        Args:
            args: As for `torch.Tensor.cuda`.
            kwargs: As for `torch.Tensor.cuda`.
        """
        return self if is_parameter(self) else super().cuda(*args, **kwargs)

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


def is_parameter(operand: torch.Tensor) -> bool:
    """Whether it is a parameter of a module."""
    return bool(getattr(operand, "_is_param", False))


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
