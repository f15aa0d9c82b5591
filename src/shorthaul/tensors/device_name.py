"""`device="unified"`: torch's one spare device name, given to unified tensors for those who ask.

A unified tensor is what `torch.empty(..., device="unified")`, `torch.zeros(..., device="unified")`
and `tensor.to("unified")` then give. The last one copies, as `.to` does between devices;
`sh.unified(tensor)` shares memory.
"""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.errors import UnifiedDeviceError
from shorthaul.tensors.constructors import unified_empty
from shorthaul.tensors.unified_tensor import UnifiedTensor

DEVICE_NAME = "unified"
_UNNAMED = "privateuseone"  # what torch calls its spare device until somebody names it

_registered: list[Any] = []  # torch.library takes its operators back when this is forgotten


def enable_unified_device() -> None:
    """Make `device="unified"` and `.to("unified")` work in this process; again is harmless.

    Torch has one name to give, for the life of the process: `UnifiedDeviceError` when another
    backend has it.
    """
    if _registered:
        return
    taken: str = torch._C._get_privateuse1_backend_name()
    if taken != _UNNAMED:
        raise UnifiedDeviceError(f"torch has room for one additional device, and {taken!r} has it")
    prepare = getattr(
        torch.utils.backend_registration, "_setup_privateuseone_for_python_backend", None
    )
    if prepare is None:
        raise UnifiedDeviceError("this torch takes no device that is written in Python")
    prepare(DEVICE_NAME)
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("empty.memory_format", _empty, "PrivateUse1")  # type: ignore[no-untyped-call]
    library.impl("empty_strided", _empty_strided, "PrivateUse1")  # type: ignore[no-untyped-call]
    _registered.append(library)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> UnifiedTensor:
    made = unified_empty(tuple(size), dtype=dtype)
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return made
    plain = made.plain().contiguous(memory_format=memory_format)
    return UnifiedTensor._of_memory(plain, made._traits)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> UnifiedTensor:
    made = unified_empty(0, dtype=dtype)
    plain = torch.empty_strided(tuple(size), tuple(stride), dtype=made.dtype, device="cpu")
    return UnifiedTensor._of_memory(plain, made._traits)
