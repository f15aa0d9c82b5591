"""Which saved tensors are the same memory, and how one of them looks at it.

The published key (time stamp, dtype, shape, strides, device) takes two views of one storage at
different offsets for the same tensor; fused query, key and value projections then exchange their
gradients in silence. Here a storage is identified by its own address, which a weak reference keeps
from being reused, and by its version: memory that was changed in place is other memory.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

# The range of a view is moved alone only when it is a small part of its storage. Otherwise all of
# the storage is, so that other views of it (key and value beside a query) need no move of their own.
SMALL_PART = 0.5
# PyTorch aligns its memory to this, and bits depend on it: the same matrix at another distance from a
# multiple of it is summed in another order by vectorized kernels. What comes back keeps its distance.
ALIGNMENT_BYTES = 64


class StorageKey(NamedTuple):
    """One range of one storage in one version."""

    storage: int  # address of the storage's C++ object
    version: int
    start_bytes: int
    length_bytes: int


class View(NamedTuple):
    """How a tensor looks at the bytes of a range."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # elements from the start of the range
    is_conjugated: bool
    is_negated: bool

    def build(self, storage: torch.UntypedStorage, start_bytes: int) -> torch.Tensor:
        """The tensor again, over `storage`, in which the range starts at `start_bytes`."""
        tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        offset = self.offset + start_bytes // self.dtype.itemsize
        tensor.set_(storage, offset, self.size, self.stride)
        if self.is_conjugated:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.is_negated else tensor


def find_key(tensor: torch.Tensor) -> StorageKey:
    """The range of storage that must be moved so that `tensor` can be built again."""
    storage = tensor.untyped_storage()
    storage_bytes = storage.nbytes()
    start, length = 0, storage_bytes
    extent_bytes = tensor.nbytes
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        extent_bytes = (1 + sum((size - 1) * step for size, step in steps)) * tensor.itemsize
    if extent_bytes < SMALL_PART * storage_bytes:
        first = int(tensor.storage_offset()) * tensor.itemsize
        start = first // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        length = first + extent_bytes - start
    return StorageKey(storage._cdata, tensor._version, start, length)


def find_view(tensor: torch.Tensor, key: StorageKey) -> View:
    """How `tensor` looks at the range that `key` names."""
    return View(
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        int(tensor.storage_offset()) - key.start_bytes // tensor.itemsize,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def find_owner(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose versions `tensor` counts: what it is a view of, or itself.

    Two saved tensors of one owner, one range and one version have the same bytes, which nobody has to
    read. Others may share their memory and not their versions (`unsafe_chunk`, `.data`).
    """
    base = tensor._base
    return tensor if base is None else base


def bytes_of_range(tensor: torch.Tensor, key: StorageKey) -> torch.Tensor:
    """The bytes of the range as a flat tensor that shares them and keeps the storage alive."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), key.start_bytes, (key.length_bytes,), (1,))


def why_not_movable(tensor: torch.Tensor) -> str | None:
    """Why a saved tensor has to stay as it is; `None` when it may be moved.

    | tensor                                  | stays because                                     |
    | parameter, or a view of one             | it lives anyway, and its owner may replace it     |
    | leaf that requires a gradient           | the same: a parameter by another name             |
    | subclass                                | only its author knows what it is made of          |
    | sparse, nested, quantized, meta, fake   | it has no one range of memory                     |
    | memory that is not PyTorch's own        | it lives anyway, and its alignment may be another |
    """
    base = tensor._base
    if _is_parameter(tensor) or (base is not None and _is_parameter(base)):
        return "parameter"
    if type(tensor) is not torch.Tensor:
        return "subclass"
    is_plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    if not is_plain or tensor.device.type == "meta":
        return "no plain memory"
    if tensor.untyped_storage().data_ptr() % ALIGNMENT_BYTES:
        return "memory of others"
    return None


def _is_parameter(tensor: torch.Tensor) -> bool:
    if tensor.is_leaf and tensor.requires_grad:
        return True
    # Asking a plain tensor whether it is a parameter takes longer than all of the rest.
    return type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)


@functools.cache
def _nothing(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor without memory, for all witnesses."""
    return torch.empty(0, dtype=dtype, device=device)


class VersionWitness:
    """Knows whether a tensor was changed in place, without keeping its memory.

    An empty tensor that shares the version counter: autograd's own check is switched off for tensors
    that pass through hooks, and the memory itself is to be given up.
    """

    __slots__ = ("_counter", "_shape", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.version: int = tensor._version
        self._shape = tensor.shape
        self._counter = tensor.detach()
        self._counter.data = _nothing(tensor.dtype, tensor.device)

    @property
    def description(self) -> str:
        """The tensor as autograd's own error names it; made only when there is one."""
        return f"{self._counter.type()} {list(self._shape)}"

    @property
    def current_version(self) -> int:
        """The version that the tensor has now."""
        return self._counter._version

    def share_with(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` with the counter of the one that was saved: a change of either is a change of both."""
        shared = self._counter.detach()
        shared.data = tensor
        return shared


class StorageReference:
    """A weak reference to a storage: it keeps the address from being reused, not the memory."""

    __slots__ = ("_address",)

    # Bound here, because modules may be cleared before the last reference at Python's end.
    _free = staticmethod(torch.UntypedStorage._free_weak_ref)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        # As `torch.multiprocessing.reductions.StorageWeakRef` does, without what it wraps around.
        self._address: int = storage._weak_ref()  # type: ignore[assignment]

    @property
    def is_alive(self) -> bool:
        """Whether anybody still holds the storage."""
        return not torch.UntypedStorage._expired(self._address)

    def revive(self, needed_bytes: int) -> torch.UntypedStorage | None:
        """The storage itself, if it lives and still has `needed_bytes`.

        Owners such as FSDP shrink a storage to nothing between its uses.
        """
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(
            self._address
        )
        return storage if storage is not None and storage.nbytes() >= needed_bytes else None

    def __del__(self) -> None:
        self._free(self._address)
