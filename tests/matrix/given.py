"""What the tensors may be like that an operation is given: each makes such ones of plain ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.matrix.operation import Tensors

Given = Callable[[Tensors, Path], dict[str, torch.Tensor]]


def _each(change: Callable[[torch.Tensor], torch.Tensor]) -> Given:
    return lambda tensors, _: {name: change(each) for name, each in tensors.items()}


def _floating(change: Callable[[torch.Tensor], torch.Tensor]) -> Given:
    return _each(lambda each: change(each) if each.is_floating_point() else each)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Every other number of memory; what lies between is far away."""
    wide = torch.full((*tensor.shape, 2), 77).to(tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    turned = tuple(reversed(range(tensor.dim())))
    return tensor.permute(turned).contiguous().permute(turned)


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    """One number into its memory, so that vectors are not aligned."""
    longer = torch.cat([torch.full((1,), 77).to(tensor.dtype), tensor.reshape(-1)])
    return longer[1:].reshape(tensor.shape)


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, behind a view that negates what memory holds."""
    viewed = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert viewed.is_neg()
    return viewed


def _read_only(tensors: Tensors, folder: Path) -> dict[str, torch.Tensor]:
    """In pages that may not be written: writing one is a crash."""
    mapped = {}
    for name, tensor in tensors.items():
        if not tensor.numel():
            mapped[name] = tensor
            continue
        path = folder / f"{name}.raw"
        path.write_bytes(tensor.contiguous().numpy().tobytes())
        array = np.memmap(path, tensor.numpy().dtype, mode="c", shape=tuple(tensor.shape))
        mapped[name] = torch.from_numpy(array)
        _protect(mapped[name])
    return mapped


def _protect(tensor: torch.Tensor) -> None:
    import ctypes

    page = 4096
    library = ctypes.CDLL(None, use_errno=True)
    first = tensor.data_ptr() // page * page
    length = tensor.data_ptr() + tensor.nbytes - first
    read_only = 1  # PROT_READ
    if library.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(length), read_only):
        raise OSError(ctypes.get_errno(), "mprotect")


def _aliased(tensors: Tensors, _: Path) -> dict[str, torch.Tensor]:
    """All numbers of one dtype begin at one place of memory."""
    longest: dict[torch.dtype, torch.Tensor] = {}
    for each in tensors.values():
        if each.numel() > longest.get(each.dtype, each[:0]).numel():
            longest[each.dtype] = each.clone().reshape(-1)
    return {
        name: longest[each.dtype][: each.numel()].view(each.shape)
        if each.is_floating_point() and each.numel()
        else each
        for name, each in tensors.items()
    }


GIVEN: dict[str, Given] = {
    "float64": _floating(torch.Tensor.double),
    "strided": _each(_strided),
    "transposed": _each(_transposed),
    "shifted": _each(_shifted),
    "negated": _floating(_negated),
    "read-only": _read_only,
    "aliased": _aliased,
    "int32": _each(lambda each: each.int() if each.dtype is torch.int64 else each),
}


def as_plain(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The same values in memory of their own, in order."""
    return {
        name: each.resolve_neg().resolve_conj().clone(memory_format=torch.contiguous_format)
        for name, each in tensors.items()
    }
