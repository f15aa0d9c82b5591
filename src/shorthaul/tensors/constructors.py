"""How unified tensors are made: from tensors and arrays without copying, or as new memory."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from shorthaul.dtypes import parse_dtype
from shorthaul.errors import UnifiedSourceError
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.tensors import pickling  # noqa: F401  (registers how processes hand tensors on)
from shorthaul.tensors.memory.own_pages import empty_pages
from shorthaul.tensors.memory.shared_memory import SharedBlock
from shorthaul.tensors.tables.table import RowTable
from shorthaul.tensors.unified_tensor import Traits, UnifiedTensor, borrow_memory, share_copy


@outside_graphs
def unified(
    source: Any, *, shared: bool = False, propagate: bool = False, sparse_grad: bool = False
) -> UnifiedTensor:
    """`source` as a unified tensor that shares its memory and keeps it alive.

    >>> import numpy as np
    >>> array = np.zeros((4, 2), np.float32)
    >>> u = unified(array)
    >>> array[1] = 7
    >>> u[torch.tensor([1])]
    tensor([[7., 7.]])

    The result is a new leaf for autograd.

    Args:
        source: A CPU tensor, numpy array or `np.memmap` of any strides. Of an array that is
            read-only, the unified tensor is, too.
        shared: Copy the rows, once, into memory that other processes map (default False).
        propagate: Keep the results of operations on unified tensors unified (default False).
        sparse_grad: Make the gradients of gathers sparse (default False).
    """
    traits = Traits(propagate=propagate, sparse_grad=sparse_grad)
    if isinstance(source, RowTable):
        whole = source.tensor()
        if whole is None:
            return UnifiedTensor.of_table(source, traits)
        source = whole
    if isinstance(source, UnifiedTensor):
        if not source.has_memory:
            return UnifiedTensor.of_table(source.table, traits)
        is_read_only = source.is_read_only
        traits = Traits(propagate, sparse_grad, is_read_only, source._traits.block)
        source = borrow_memory(source)
    elif isinstance(source, torch.Tensor):
        _require_plain(source)
    elif isinstance(source, np.ndarray):
        traits = Traits(propagate, sparse_grad, is_read_only=not source.flags.writeable)
        source = _share_array(source)
    else:
        raise UnifiedSourceError(
            "sh.unified",
            "a CPU tensor, numpy array or table",
            f"{type(source).__module__}.{type(source).__qualname__}",
            "A file is opened with sh.open(path); lists become tensors with torch.tensor(...).",
        )
    if shared and traits.block is None:
        return share_copy(source, Traits(propagate, sparse_grad))
    return UnifiedTensor._of_memory(source.detach(), traits)


@outside_graphs
def unified_empty(
    *size: Any,
    dtype: torch.dtype | str | None = None,
    shared: bool = False,
    propagate: bool = False,
    sparse_grad: bool = False,
) -> UnifiedTensor:
    """New memory of any content, as `torch.empty`; shared memory is zeros.

    >>> unified_empty(3, 2, dtype=torch.int32).shape
    torch.Size([3, 2])

    Args:
        size: The shape, as numbers or as one sequence.
        dtype: Of its values; None (default) takes PyTorch's default.
        shared: Take memory that other processes map (default False).
        propagate: Keep the results of operations on unified tensors unified (default False).
        sparse_grad: Make the gradients of gathers sparse (default False).
    """
    sizes = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = torch.get_default_dtype() if dtype is None else parse_dtype(dtype)
    traits = Traits(propagate=propagate, sparse_grad=sparse_grad)
    if not shared:
        return UnifiedTensor._of_memory(empty_pages(sizes, dtype), traits)
    block = SharedBlock(sizes.numel() * dtype.itemsize)
    traits = Traits(propagate=propagate, sparse_grad=sparse_grad, block=block)
    return UnifiedTensor._of_memory(block.tensor(dtype, sizes), traits)


@outside_graphs
def unified_zeros(
    *size: Any,
    dtype: torch.dtype | str | None = None,
    shared: bool = False,
    propagate: bool = False,
    sparse_grad: bool = False,
) -> UnifiedTensor:
    """New memory of zeros, as `torch.zeros`. Its arguments are those of `unified_empty`.

    >>> unified_zeros(2, shared=True)
    unified([0., 0.])
    """
    # The kernel hands pages out as zeros, and untouched they take no room.
    return unified_empty(
        *size, dtype=dtype, shared=shared, propagate=propagate, sparse_grad=sparse_grad
    )


def _require_plain(source: torch.Tensor) -> None:
    if source.device.type != "cpu" or source.layout != torch.strided or source.is_quantized:
        raise UnifiedSourceError(
            "sh.unified",
            "a dense tensor in host memory",
            f"{source.layout} of shape {tuple(source.shape)} on {source.device}",
            "Bring it to the host first: sh.unified(tensor.cpu()).",
        )
    if source.is_conj() or source.is_neg():
        raise UnifiedSourceError(
            "sh.unified",
            "memory that holds the values themselves",
            "a conjugate or negative view",
            "Make it plain: sh.unified(tensor.resolve_conj().resolve_neg()).",
        )


def _share_array(array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        with warnings.catch_warnings():
            # Torch warns that writing to a read-only array is undefined; ours refuse to be written.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise UnifiedSourceError(
            "sh.unified",
            "an array of numbers that torch can share",
            f"{array.dtype} with strides {array.strides} ({str(error).splitlines()[0]})",
            "Copy it into an ordinary layout: np.ascontiguousarray(array.astype(...)).",
        ) from error
