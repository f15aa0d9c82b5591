"""What a user gives as edges -> index tensors that can be trusted, or an error that names the edge."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch

from shorthaul.errors import EdgeRangeError, GraphError
from shorthaul.graphs.index import kernels as index_kernels
from shorthaul.graphs.index import plain as plain_indexes
from shorthaul.jit import can_use_kernels
from shorthaul.tensors.unified_tensor import UnifiedTensor, borrow_memory

INT32_LIMIT = 2**31 - 1
_WHOLE_NUMBERS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16, torch.uint16)


def choose_builder(like: torch.Tensor) -> ModuleType:
    """Generated kernels for tensors such as `like`, or the same functions in plain PyTorch."""
    if like.device.type != "cpu":  # mini-batches on a GPU are indexed where they lie
        return plain_indexes
    return index_kernels if can_use_kernels("graph indexes") else plain_indexes


def choose_index_dtype(asked: torch.dtype | None, largest: int) -> torch.dtype:
    """int32 wherever every count fits, unless int64 is asked for.

    >>> choose_index_dtype(None, 10**6), choose_index_dtype(None, 2**31)
    (torch.int32, torch.int64)
    """
    if asked not in (None, torch.int32, torch.int64):
        raise GraphError(f"index_dtype must be torch.int32, torch.int64 or None, got {asked}.")
    if asked is torch.int32 and largest > INT32_LIMIT:
        raise GraphError(
            f"index_dtype is torch.int32, but the graph counts up to {largest:,}, and int32 ends at "
            f"{INT32_LIMIT:,}.\n  Leave index_dtype out, or ask for torch.int64."
        )
    if asked is not None:
        return asked
    return torch.int32 if largest <= INT32_LIMIT else torch.int64


def read_numbers(given: Any, name: str) -> torch.Tensor:
    """`given` as a flat CPU tensor of int32 or int64, which shares its memory where it can."""
    if isinstance(given, np.ndarray) and not given.flags.writeable:
        given = given.copy()  # torch would warn: it cannot promise not to write
    try:
        tensor = given if isinstance(given, torch.Tensor) else torch.as_tensor(given, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(
            f"`{name}` must be a tensor, array or list of whole numbers: {error}."
        ) from error
    if tensor.numel() == 0 and not isinstance(given, torch.Tensor | np.ndarray):
        tensor = tensor.long()  # an empty list has no type of its own
    if tensor.dtype not in _WHOLE_NUMBERS:
        raise GraphError(
            f"`{name}` must hold whole numbers (int32 or int64), got {tensor.dtype}.\n"
            f"  Ids beyond 16,777,216 are not exact in float32; make them with dtype=torch.int64."
        )
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise GraphError(
            f"`{name}` must be a dense CPU tensor, got {tensor.layout} on {tensor.device}.\n"
            "  Indexes are built by the CPU: pass it as .cpu()."
        )
    if tensor.dim() != 1:
        raise GraphError(f"`{name}` must have one dimension, got shape {tuple(tensor.shape)}.")
    tensor = as_plain(tensor).detach()
    return tensor if tensor.dtype in (torch.int32, torch.int64) else tensor.long()


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers as an ordinary tensor in memory: what lies on disk is read."""
    return borrow_memory(tensor) if isinstance(tensor, UnifiedTensor) else tensor


def numbers_at(column: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The numbers of `column` at `ids`, beside `ids`: where there is a GPU, `column[ids]` of a unified
    tensor would send them there, while samples are drawn by the CPU.
    """
    if isinstance(column, UnifiedTensor):
        return column.gather(ids, device=ids.device)
    return column[ids]


def share_column(column: torch.Tensor) -> torch.Tensor:
    """The same numbers in the same memory, as another tensor."""
    return column if isinstance(column, UnifiedTensor) else column.detach()


def split_edge_index(edge_index: Any, name: str = "edge_index") -> tuple[Any, Any]:
    """The two rows of a (2, E) tensor, or of a pair of vectors."""
    shape = tuple(getattr(edge_index, "shape", ()))
    if isinstance(edge_index, tuple | list) and len(edge_index) == 2:
        return edge_index[0], edge_index[1]
    if len(shape) != 2 or shape[0] != 2:
        swapped = "\n  It looks turned over: pass `.t()` of it." if shape[1:] == (2,) else ""
        got = f"shape {shape}" if shape else type(edge_index).__name__
        raise GraphError(f"`{name}` must have shape (2, edges), got {got}.{swapped}")
    return edge_index[0], edge_index[1]


def require_range(values: torch.Tensor, limit: int, end: str, counted: str) -> None:
    """Raise unless every value is in `range(limit)`; the error names the first edge that is not."""
    position = choose_builder(values).find_outside(values.contiguous(), limit)
    if position is not None:
        raise EdgeRangeError(end, position, int(values[position]), limit, counted)


def require_lengths(**vectors: torch.Tensor) -> None:
    """Raise unless all have one length."""
    lengths = {name: vector.numel() for name, vector in vectors.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"`{name}` has {length:,}" for name, length in lengths.items())
        raise GraphError(f"every edge needs a value in each of these, but {told}.")


def require_count(name: str, value: Any) -> int:
    """`value` as a count, or an error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise GraphError(f"`{name}` must be a whole number from 0 on, got {value!r}.")
    return int(value)


def is_sorted(values: torch.Tensor) -> bool:
    """Whether no number is less than the one before; a look at the first tells most that are not.

    >>> is_sorted(torch.tensor([0, 0, 2])), is_sorted(torch.tensor([1, 0]))
    (True, False)
    """
    first = values[:1024]
    return all(bool((part[1:] >= part[:-1]).all()) for part in (first, values))


def group_by_relation(
    relation: torch.Tensor, source: torch.Tensor, target: torch.Tensor, num_relations: int
) -> tuple[torch.Tensor, ...]:
    """Where each relation begins, then edge ids, sources and targets by relation.

    >>> [each.tolist() for each in group_by_relation(*torch.tensor([[1, 0], [5, 6], [7, 8]]), 2)]
    [[0, 1, 2], [1, 0], [6, 5], [8, 7]]
    """
    if not is_sorted(relation):
        made: tuple[torch.Tensor, ...] = choose_builder(relation).sort_relations(
            relation, source, target, num_relations
        )
        return made
    # As it is with one relation, or with typed edges.
    numbers = torch.arange(num_relations + 1, dtype=relation.dtype, device=relation.device)
    pointers = torch.searchsorted(relation, numbers, out_int32=relation.dtype is torch.int32)
    ids = torch.arange(relation.shape[0], dtype=relation.dtype, device=relation.device)
    return pointers, ids, source, target
