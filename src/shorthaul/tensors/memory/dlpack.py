"""A tensor over memory that is known by its address alone, through DLPack.

PyTorch makes CUDA tensors of foreign addresses in two ways. `__cuda_array_interface__` asks the
driver which device an address belongs to, and host memory answers with the device that was current
when it was registered; DLPack takes the device from the label, so one registration serves them all.

>>> import ctypes
>>> memory = ctypes.create_string_buffer(b"rows")
>>> bytes(tensor_at(ctypes.addressof(memory), 4, torch.device("cpu"), keeper=memory))
b'rows'
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from shorthaul.errors import CudaUnavailableError

# Labels of dlpack.h. Mapped host memory is labeled as the device's own: PyTorch refuses the label
# for host memory of CUDA (kDLCUDAHost) in a CUDA tensor.
DEVICE_LABELS = {"cpu": 1, "cuda": 2}
_UNSIGNED_INTEGER = 1


class _Device(ctypes.Structure):
    _fields_ = (("label", ctypes.c_int32), ("index", ctypes.c_int32))


class _Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset_bytes", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _ManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
    )


# What PyTorch still holds, by the address of its structure: the structure and the memory's keeper.
_held: dict[int, tuple[Any, ...]] = {}


def _let_go(address: int) -> None:
    _held.pop(address, None)


_deleter = _Deleter(_let_go)

_make_capsule = ctypes.pythonapi.PyCapsule_New
_make_capsule.restype = ctypes.py_object
_make_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def tensor_at(
    address: int, length_bytes: int, device: torch.device, *, keeper: object
) -> torch.Tensor:
    """The bytes from `address` on, as uint8 on `device`. The memory's `keeper` lives as long."""
    if device.type == "cuda" and not torch.cuda.is_available():
        # Asked itself, PyTorch would call the deleter in the middle of its own error.
        raise CudaUnavailableError("PyTorch finds no CUDA device that it can use")
    shape = (ctypes.c_int64 * 1)(length_bytes)
    managed = _ManagedTensor(
        _Tensor(
            address,
            _Device(DEVICE_LABELS[device.type], device.index or 0),
            1,
            _Dtype(_UNSIGNED_INTEGER, 8, 1),
            shape,
            None,
            0,
        ),
        None,
        _deleter,
    )
    place = ctypes.addressof(managed)
    _held[place] = (managed, shape, keeper)
    return from_dlpack(_make_capsule(place, b"dltensor", None))
