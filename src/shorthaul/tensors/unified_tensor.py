"""The unified tensor: rows read where they lie, by ordinary torch code.

>>> import shorthaul as sh
>>> u = sh.unified(torch.arange(6.0).view(3, 2))
>>> u[torch.tensor([2, 0])]
tensor([[4., 5.],
        [0., 1.]])
>>> u[1:].add_(10), (u * 2).sum()
(unified([[12., 13.],
         [14., 15.]]), tensor(110.))

In memory it is a CPU tensor like any other, to kernels and to C++; only its class is another, so
that operators ask `dispatch` where to run. On disk it has a shape and a dtype and no memory, and
rows are read by `u[ids]`, `u[a:b].cpu()` and the gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from shorthaul.errors import DiskTensorError, ReadOnlyTensorError, RowArgumentError
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.tensors.dispatch import operators as dispatch
from shorthaul.tensors.dispatch.operand import AsPlain, Operand
from shorthaul.tensors.gathering.autograd import (
    GatherLinear,
    GatherReduce,
    GatherRows,
    gather_on,
    linear_on,
    reduce_on,
)
from shorthaul.tensors.kernels.plain_rows import Reduction
from shorthaul.tensors.memory.advice import advise_memory
from shorthaul.tensors.memory.own_pages import empty_pages
from shorthaul.tensors.memory.shared_memory import SharedBlock
from shorthaul.tensors.tables.row_range import RowRange
from shorthaul.tensors.tables.table import GatherTicket, HostTable, Kind, RowTable, TableStats
from shorthaul.tensors.tables.whole_memory import WholeMemory

CHUNK_BYTES = 64 * 2**20
_ID_DTYPES = frozenset({torch.int64, torch.int32})
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Traits:
    """What views of a unified tensor, and copies of it, take over."""

    propagate: bool = False
    sparse_grad: bool = False
    is_read_only: bool = False
    block: SharedBlock | None = None  # where the memory is shared with other processes
    is_for_host: bool = False  # read by the CPU, also where there is a GPU
    memory: WholeMemory = field(default_factory=WholeMemory, compare=False)


class UnifiedTensor(Operand):
    """Rows that lie in host memory or on disk; made by `sh.unified`, `sh.open` and their siblings."""

    # Methods go straight to the dispatcher: the usual detour costs more than a small gather.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    reducers: ClassVar[list[Callable[[Any], Any]]] = []  # how it is pickled: `pickling` enters it
    _traits: Traits = Traits()
    _rows: RowTable | None = None  # the table, when it has been asked for; always, without memory
    _rows_key: tuple[Any, ...] | None = None

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See `dispatch`."""
        return dispatch.run_operator(UnifiedTensor, operator, args, kwargs or {})

    # What it is.

    @property
    def is_unified(self) -> bool:
        """True."""
        return True

    @property
    def propagate(self) -> bool:
        """Whether operations on unified tensors alone give unified tensors."""
        return self._traits.propagate

    @property
    def sparse_grad(self) -> bool:
        """Whether gathers give the table a sparse gradient."""
        return self._traits.sparse_grad

    @property
    def is_read_only(self) -> bool:
        """Whether it lies in memory that cannot be written, or on disk."""
        return self._traits.is_read_only

    @property
    def kind(self) -> Kind:
        """Where the rows lie: `host`, `shared` or `disk`."""
        if not self.has_memory:
            return self.table.kind
        return "host" if self._block is None else "shared"

    @property
    def _block(self) -> SharedBlock | None:
        """The shared memory it lies in; none after the memory was exchanged (`u.data = ...`)."""
        block = self._traits.block
        is_there = block is not None and self.untyped_storage().data_ptr() == block.address
        return block if is_there else None

    @property
    def table(self) -> RowTable:
        """The rows as a table; made anew when the memory was exchanged (`u.data = ...`)."""
        if not self.has_memory:
            assert self._rows is not None
            return self._rows
        key = (self.data_ptr(), self.shape, self.stride(), self.dtype)
        if self._rows is None or self._rows_key != key:
            plain = borrow_memory(self)
            self._rows, self._rows_key = HostTable(plain, kind=self.kind, memory=self.memory), key
        return self._rows

    @property
    def memory(self) -> HostTable:
        """All bytes of the memory that it lies in, which views of it share."""
        return self._traits.memory.table_of(borrow_memory(self))

    @outside_graphs
    def plain(self) -> torch.Tensor:
        """An ordinary CPU tensor that shares the memory; without memory, all rows are read.

        Memory that cannot be written is copied: an ordinary tensor could not refuse to be changed.
        """
        memory = borrow_memory(self)
        return memory.clone() if self.has_memory and self.is_read_only else memory

    # Direct paths.

    @outside_graphs
    def __getitem__(self, index: Any) -> Any:
        if type(index) is torch.Tensor and index.dtype in _ID_DTYPES and index.dim():
            # The shortest way for the most frequent question: everything here is counted.
            is_simple = index.dim() == 1 and index.is_cpu and not self.requires_grad
            if is_simple and (self._traits.is_for_host or dispatch.current_device() is None):
                return self.table.gather(index)
            return self._gather(index)
        if not self.has_memory and isinstance(index, tuple) and index:
            first, *rest = index
            if isinstance(first, torch.Tensor | list | np.ndarray) and all(
                each is None or each is Ellipsis or isinstance(each, slice | int) for each in rest
            ):
                inner = (slice(None), *rest)
                return self[first][inner]
        return super().__getitem__(index)

    @outside_graphs
    def gather(  # type: ignore[override]
        self,
        ids: Any = None,
        *torch_arguments: Any,
        out: torch.Tensor | None = None,
        device: torch.device | str | None = None,
        **torch_options: Any,
    ) -> torch.Tensor:
        """The rows that `ids` name, in that order, into `out` or onto `device` where given.

        `u.gather(dim, index)` is torch's own, as for every tensor.

        Args:
            ids: Row numbers, negative ones from the end: a tensor, list or array.
            torch_arguments: For torch's own `gather`.
            out: Receives the rows; None (default) makes a new tensor.
            device: Where the rows are wanted; None (default) takes that of `ids`.
            torch_options: For torch's own `gather`.
        """
        if torch_arguments or torch_options or isinstance(ids, int):
            torch_arguments = torch_arguments if ids is None else (ids, *torch_arguments)
            return super().gather(*torch_arguments, **torch_options)
        return self._gather(as_ids(ids), out, None if device is None else torch.device(device))

    @outside_graphs
    def gather_reduce(
        self,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: Reduction = "sum",
        weights: torch.Tensor | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> torch.Tensor:
        """One row for each segment `ids[pointers[s]:pointers[s + 1]]`: their sum, mean or maximum.

        With `weights`, one for each id, rows are multiplied first. An empty segment gives zeros.

        Args:
            pointers: (segments + 1,): where each segment of `ids` begins, and where the last one
                ends.
            ids: Row numbers.
            op: `"sum"` (default), `"mean"` or `"max"`.
            weights: A factor for each id; None (default) for none.
            device: Where the result is wanted; None (default) takes that of `ids`.
        """
        pointers, ids = as_ids(pointers), as_ids(ids)
        target = self._target(ids, None, device)
        if self._records(weights):
            arguments = (weights, pointers, ids, op, self.table, self.sparse_grad, target)
            return _apply(GatherReduce, self, *arguments)
        return reduce_on(self.table, pointers, ids, op, weights, target)

    @outside_graphs
    def gather_linear(
        self, ids: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`linear(u[ids], weight, bias)`, without the matrix of gathered rows ever being built.

        Args:
            ids: Row numbers.
            weight: (out_features, in_features), as in `torch.nn.functional.linear`.
            bias: (out_features,), or None for none (default).
        """
        ids = as_ids(ids)
        if self._records(weight, bias):
            return _apply(GatherLinear, self, weight, bias, ids, self.table, self.sparse_grad)
        return linear_on(self.table, ids, weight, bias)

    @outside_graphs
    def scatter_(self, ids: Any = None, *rows: Any, **torch_options: Any) -> UnifiedTensor:  # type: ignore[override]
        """Write `rows` over the rows that `ids` name; of repeated ids the last one wins.

        `u.scatter_(dim, index, source)` is torch's own, as for every tensor.

        Args:
            ids: Row numbers.
            rows: One row for each id.
            torch_options: For torch's own `scatter_`.
        """
        if isinstance(ids, int) or torch_options or len(rows) != 1:
            rows = rows if ids is None else (ids, *rows)
            super().scatter_(*rows, **torch_options)
            return self
        if self.has_memory and self.is_read_only:
            raise ReadOnlyTensorError("scatter_", "read-only memory")
        if self.requires_grad and torch.is_grad_enabled():
            raise RowArgumentError(
                "scatter_", "called under torch.no_grad() on a table that requires grad", "without"
            )
        values = torch.as_tensor(
            rows[0],
            dtype=None if isinstance(rows[0], torch.Tensor | np.ndarray) else self.dtype,
            device="cpu",
        )
        values = borrow_memory(values) if isinstance(values, UnifiedTensor) else values.detach()
        self.table.scatter_(as_ids(ids).cpu(), values)
        if self.has_memory:
            torch.autograd.graph.increment_version(self)
        return self

    @outside_graphs
    def prefetch(self, ids: torch.Tensor) -> GatherTicket:
        """Start reading the rows that `ids` name; `ticket.wait()` hands them out."""
        return self.table.prefetch(as_ids(ids).cpu())

    @outside_graphs
    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` as a plain tensor: shared with memory, read from disk.

        Args:
            start: The first row.
            stop: The row after the last.
        """
        part = range(self.shape[0])[start:stop]
        rows = self.table.read(part.start, max(part.start, part.stop))
        return rows.clone() if self.has_memory and self.is_read_only else rows

    def chunks(self, rows: int | None = None) -> Iterator[torch.Tensor]:
        """All rows as plain tensors of `rows` rows, one after the other; by default 64 MiB each."""
        row_bytes = self.shape[1:].numel() * self.dtype.itemsize
        step = rows if rows is not None else max(1, CHUNK_BYTES // max(1, row_bytes))
        if step < 1:
            raise RowArgumentError("rows", "at least 1", str(rows))
        for start in range(0, self.shape[0], step):
            yield self.read(start, start + step)

    @outside_graphs
    def advise(self, advice: str) -> None:
        """Tell the kernel how memory will be used.

        Rows on disk are read past the kernel's cache, so advice about them is refused.

        Args:
            advice: `"random"`, `"sequential"`, `"will_need"`, `"huge_pages"` or `"normal"`.
        """
        if not self.has_memory:
            raise RowArgumentError(
                "the table of u.advise",
                "in memory",
                "one on disk: choose what of it is kept in memory by sh.open(path, cache=...)",
            )
        advise_memory(borrow_memory(self), advice)

    def stats(self) -> TableStats:
        """What has been asked of the table so far, and what it cost."""
        return self.table.stats()

    def close(self) -> None:
        """Let go of files and buffers; rows that were handed out stay."""
        self.table.close()

    # What torch's own methods do not do for subclasses, or not without reading a whole file.

    @outside_graphs
    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """A plain CPU tensor: shared with memory, copied from read-only memory, read from disk."""
        if not self.has_memory:
            return self.table.read(0, self.shape[0])
        if self.is_read_only:
            return self.clone(memory_format=memory_format)
        return _apply(AsPlain, self) if self._records() else self.plain()

    def numpy(self, *, force: bool = False) -> Any:
        """An array that shares the memory; writable only where the memory is."""
        if not self.has_memory:
            raise self.refusal("numpy")
        if self.requires_grad and not force:
            refusing = torch.empty(0, requires_grad=True, dtype=torch.float32, device="cpu")
            return refusing.numpy()  # torch's own error
        array = borrow_memory(self).numpy()
        if self.is_read_only:
            array.flags.writeable = False
        return array

    def tolist(self) -> Any:
        """Nested lists of numbers."""
        if not self.has_memory:
            raise self.refusal("tolist")
        return borrow_memory(self).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        if not self.has_memory:
            raise self.refusal("__dlpack__")
        if self.is_read_only:
            raise ReadOnlyTensorError("__dlpack__", "read-only memory, and who takes it may write")
        return self.plain().__dlpack__(**options)

    def __iter__(self) -> Iterator[Any]:
        if self.has_memory:
            return super().__iter__()  # type: ignore[no-untyped-call,no-any-return]
        return (row for rows in self.chunks() for row in rows)

    def __copy__(self) -> UnifiedTensor:
        copied = self.as_unified(borrow_memory(self)) if self.has_memory else self.same_rows()
        copied.requires_grad_(self.requires_grad)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> UnifiedTensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            return super().__deepcopy__(memo)  # type: ignore[no-untyped-call,no-any-return]  # torch's error
        copied = self._copied() if self.has_memory else self.same_rows()
        copied.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copied._is_param = True
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)  # type: ignore[no-untyped-call]
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        reduced: tuple[Any, ...] = self.reducers[0](self)
        return reduced

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        words = "Parameter containing:\n" if getattr(self, "_is_param", False) else ""
        ending = ", requires_grad=True)" if self.requires_grad else ")"
        if self.grad_fn is not None:
            ending = f", grad_fn=<{type(self.grad_fn).__name__}>)"
        if not self.has_memory:
            return f"{words}unified(<{self.table!r}>{ending}"
        text = repr(borrow_memory(self)).removeprefix("tensor(").removesuffix(")")
        text = text.replace("\n", "\n ")
        return f"{words}unified({text}{ending}"

    def __format__(self, format_spec: str) -> str:
        if self.dim() == 0 and self.has_memory:
            return format(borrow_memory(self), format_spec)
        return object.__format__(self, format_spec)

    # How unified tensors are made from unified tensors.

    @staticmethod
    def _of_memory(plain: torch.Tensor, traits: Traits) -> UnifiedTensor:
        made = torch.Tensor._make_subclass(UnifiedTensor, plain)
        made._traits = traits
        return made

    @staticmethod
    def of_table(table: RowTable, traits: Traits) -> UnifiedTensor:
        """The table as a tensor.

        Args:
            table: Rows that lie somewhere.
            traits: What the tensor may do with them.
        """
        made: UnifiedTensor = torch.Tensor._make_wrapper_subclass(
            UnifiedTensor, table.shape, dtype=table.dtype, device=_CPU
        )
        is_read_only = traits.is_read_only or table.kind == "disk"
        made._traits = replace(traits, is_read_only=is_read_only)
        made._rows, made.has_memory = table, False
        return made

    def as_unified(self, plain: torch.Tensor, *, is_new: bool = False) -> UnifiedTensor:
        """An ordinary tensor as a unified one of the same kind.

        Args:
            plain: The tensor.
            is_new: Whether an operation made it, so that nobody else has it (default False).
        """
        own = self._traits
        return UnifiedTensor._of_memory(
            plain, Traits(own.propagate, own.sparse_grad) if is_new else own
        )

    def same_rows(self) -> UnifiedTensor:
        """The same rows as another tensor."""
        return UnifiedTensor.of_table(self.table, self._traits)

    def cut_rows(self, span: range) -> UnifiedTensor:
        """A range of the rows."""
        return UnifiedTensor.of_table(RowRange(self.table, span), self._traits)

    def _copied(self) -> UnifiedTensor:
        plain = borrow_memory(self)
        traits = replace(self._traits, is_read_only=False, block=None, memory=WholeMemory())
        if self.kind != "shared":
            is_dense = plain.is_contiguous()
            copied = (
                empty_pages(plain.shape, plain.dtype).copy_(plain) if is_dense else plain.clone()
            )
            return UnifiedTensor._of_memory(copied, traits)
        return share_copy(plain, traits)

    # How rows are asked for.

    def _gather(
        self,
        ids: torch.Tensor,
        out: torch.Tensor | None = None,
        device: torch.device | None = None,
    ) -> torch.Tensor:
        target = self._target(ids, out, device)
        shape = ids.shape
        if out is not None and tuple(out.shape) != (*shape, *self.shape[1:]):
            raise RowArgumentError(
                "out", f"of shape {(*shape, *self.shape[1:])}", f"shape {tuple(out.shape)}"
            )
        flat = ids if len(shape) == 1 else ids.reshape(-1)
        if self.requires_grad and torch.is_grad_enabled():
            if out is not None:
                raise RowArgumentError("out", "left out where gradients are recorded", "a tensor")
            rows = _apply(GatherRows, self, flat, self.table, self.sparse_grad, target)
        elif out is None:
            rows = gather_on(self.table, flat, target)
        else:
            flat_out = out if len(shape) == 1 else out.view(-1, *self.shape[1:])
            rows = gather_on(self.table, flat, target, flat_out)
        if len(shape) == 1:
            return rows if out is None else out
        return rows.view(*shape, *self.shape[1:]) if out is None else out

    def gather_plain(self, ids: torch.Tensor) -> torch.Tensor:
        """Below autograd, on the CPU: for operators that dispatch found."""
        rows = self.table.gather(as_ids(ids).reshape(-1).cpu())
        return rows.view(*ids.shape, *self.shape[1:])

    def _target(
        self, ids: torch.Tensor, out: torch.Tensor | None, device: torch.device | str | None
    ) -> torch.device:
        if out is not None:
            return out.device
        if device is not None or not ids.is_cpu:
            return torch.device(ids.device if device is None else device)
        return _CPU if self._traits.is_for_host else dispatch.current_device() or _CPU

    def _records(self, *others: torch.Tensor | None) -> bool:
        if not torch.is_grad_enabled():
            return False
        return self.requires_grad or any(each is not None and each.requires_grad for each in others)

    def refusal(self, operation: str, remedy: str = "") -> DiskTensorError:
        """The error for an operation that rows without memory cannot do.

        Args:
            operation: What was asked for.
            remedy: What to do instead (default: to read the rows first).
        """
        table = self.table.table if isinstance(self.table, RowRange) else self.table
        size_bytes = self.shape[0] * self.table.stored_row_bytes
        if self.has_memory or table.kind != "disk":
            return DiskTensorError(operation, "quantized", "widen", size_bytes, "rows", remedy)
        layout = getattr(table, "layout", None)
        where = "the file" if layout is None else str(layout.path)
        return DiskTensorError(operation, "disk", "read", size_bytes, where, remedy)


@outside_graphs
def borrow_memory(tensor: UnifiedTensor) -> torch.Tensor:
    """The memory as a plain tensor, for code that only reads it; without memory, all rows are read."""
    if not tensor.has_memory:
        return tensor.table.read(0, tensor.shape[0])
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    result: torch.Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def as_ids(ids: Any) -> torch.Tensor:
    """Row numbers as a tensor; lists, ranges and arrays are taken too."""
    if isinstance(ids, UnifiedTensor):
        return borrow_memory(ids)
    if isinstance(ids, torch.Tensor):
        return ids
    found = torch.as_tensor(ids if isinstance(ids, np.ndarray) else [*ids], device="cpu")
    return found.long() if found.numel() == 0 else found


def share_copy(plain: torch.Tensor, traits: Traits) -> UnifiedTensor:
    """`plain` copied into shared memory."""
    block = SharedBlock(plain.numel() * plain.dtype.itemsize)
    shared = block.tensor(plain.dtype, plain.shape)
    shared.copy_(plain)
    return UnifiedTensor._of_memory(shared, replace(traits, block=block, memory=WholeMemory()))
