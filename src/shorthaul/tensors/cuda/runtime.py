"""The few calls of the CUDA runtime that mapping host memory needs, and the library they are in.

`torch.cuda.cudart()` has the first two of them, and not the one that tells a device's address. The
runtime that PyTorch has loaded has them all.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Protocol

import torch

from shorthaul.errors import CudaUnavailableError
from shorthaul.tensors.memory.dlpack import tensor_at

SUCCESS = 0
OUT_OF_MEMORY = 2
RUNTIME_UNLOADING = 4
OPERATING_SYSTEM = 304
ALREADY_REGISTERED = 712
NOT_REGISTERED = 713
NOT_SUPPORTED = 801

PORTABLE = 1  # seen by every device, not only by the current one
MAPPED = 2
READ_ONLY = 8  # pages that the process itself cannot write


class CudaRuntime(Protocol):
    """What is asked of CUDA. Return codes are the runtime's; nothing here raises because of one."""

    def register(self, address: int, length_bytes: int, flags: int) -> int:
        """`cudaHostRegister`: lock pages in memory and map them into the device."""

    def unregister(self, address: int) -> int:
        """`cudaHostUnregister`, by the address that was registered."""

    def device_pointer(self, address: int) -> tuple[int, int]:
        """`cudaHostGetDevicePointer`: the code, and the address as devices know it."""

    def describe(self, code: int) -> str:
        """The runtime's own words for a code."""

    def clear_error(self) -> None:
        """Forget the last error, which PyTorch would take for one of its next kernel."""

    def synchronize(self, device: torch.device) -> None:
        """Return when nothing runs on `device` any more."""

    def view(
        self, pointer: int, length_bytes: int, device: torch.device, keeper: object
    ) -> torch.Tensor:
        """The bytes from a device's address on, as a uint8 tensor that keeps `keeper`."""


class SystemCudaRuntime:
    """The CUDA runtime that this process has loaded."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.cudaHostRegister.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        library.cudaHostUnregister.argtypes = (ctypes.c_void_p,)
        library.cudaHostGetDevicePointer.argtypes = (
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_void_p,
            ctypes.c_uint,
        )
        library.cudaGetErrorString.argtypes = (ctypes.c_int,)
        library.cudaGetErrorString.restype = ctypes.c_char_p

    def register(self, address: int, length_bytes: int, flags: int) -> int:
        """`cudaHostRegister`."""
        return int(self._library.cudaHostRegister(address, length_bytes, flags))

    def unregister(self, address: int) -> int:
        """`cudaHostUnregister`."""
        return int(self._library.cudaHostUnregister(address))

    def device_pointer(self, address: int) -> tuple[int, int]:
        """`cudaHostGetDevicePointer`."""
        pointer = ctypes.c_void_p()
        code = self._library.cudaHostGetDevicePointer(ctypes.byref(pointer), address, 0)
        return int(code), pointer.value or 0

    def describe(self, code: int) -> str:
        """`cudaGetErrorString`."""
        return bytes(self._library.cudaGetErrorString(code)).decode()

    def clear_error(self) -> None:
        """`cudaGetLastError`, which also clears it."""
        self._library.cudaGetLastError()

    def synchronize(self, device: torch.device) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(device)

    def view(
        self, pointer: int, length_bytes: int, device: torch.device, keeper: object
    ) -> torch.Tensor:
        """A CUDA tensor over the mapped bytes."""
        return tensor_at(pointer, length_bytes, device, keeper=keeper)


def library_names(cuda_version: str) -> tuple[str, ...]:
    """What the runtime of such a version is called: 11 kept a zero that later ones dropped."""
    major = cuda_version.split(".")[0]
    return (f"libcudart.so.{major}", f"libcudart.so.{major}.0", "libcudart.so")


@functools.cache
def load_runtime() -> SystemCudaRuntime:
    """The runtime that PyTorch uses; `CudaUnavailableError` where there is none."""
    version = torch.version.cuda
    if version is None:
        raise CudaUnavailableError("this PyTorch was built without CUDA")
    if not torch.cuda.is_available():
        raise CudaUnavailableError("PyTorch finds no CUDA device that it can use")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    for name in library_names(version):
        try:
            return SystemCudaRuntime(ctypes.CDLL(name))
        except OSError:
            continue
    raise CudaUnavailableError(f"none of {', '.join(library_names(version))} can be loaded")
