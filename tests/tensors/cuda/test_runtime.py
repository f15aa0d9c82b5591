"""The CUDA runtime is called as CUDA declares it, and its absence has a name."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from shorthaul.errors import CudaUnavailableError
from shorthaul.tensors.cuda.runtime import SystemCudaRuntime, library_names, load_runtime


def _library(calls: list[tuple[object, ...]]) -> SimpleNamespace:
    """Functions of the runtime behind ctypes, so that arguments arrive as C would get them."""

    def register(address: int, length_bytes: int, flags: int) -> int:
        calls.append(("register", address, length_bytes, flags))
        return 712

    def pointer_of(target: int, address: int, flags: int) -> int:
        ctypes.c_void_p.from_address(target).value = address + 4096
        return flags

    def unregister(address: int) -> int:
        calls.append(("unregister", address))
        return 0

    def last_error() -> int:
        calls.append(("last error",))
        return 712

    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    # ctypes cannot return a string from Python, so the words are an address.
    words = ctypes.create_string_buffer(b"already registered")
    return SimpleNamespace(
        cudaHostRegister=ctypes.CFUNCTYPE(number, pointer, size, ctypes.c_uint)(register),
        cudaHostUnregister=ctypes.CFUNCTYPE(number, pointer)(unregister),
        cudaHostGetDevicePointer=ctypes.CFUNCTYPE(number, pointer, pointer, ctypes.c_uint)(
            pointer_of
        ),
        cudaGetErrorString=ctypes.CFUNCTYPE(pointer, number)(lambda _: ctypes.addressof(words)),
        cudaGetLastError=ctypes.CFUNCTYPE(number)(last_error),
    )


HIGH = 0x7FFF_1234_5000  # an address that needs all 64 bits of an argument
LONG_BYTES = 5 * 2**30


def test_calls_arrive_with_all_their_bits() -> None:
    calls: list[tuple[object, ...]] = []
    runtime = SystemCudaRuntime(_library(calls))
    assert runtime.register(HIGH, LONG_BYTES, 3) == 712
    assert runtime.unregister(HIGH) == 0
    runtime.clear_error()
    assert calls == [("register", HIGH, LONG_BYTES, 3), ("unregister", HIGH), ("last error",)]
    assert runtime.device_pointer(HIGH) == (0, HIGH + 4096)
    assert runtime.describe(712) == "already registered"


def test_the_library_is_that_of_pytorchs_cuda() -> None:
    assert library_names("12.8")[0] == "libcudart.so.12"
    assert "libcudart.so.11.0" in library_names("11.8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_cuda_has_a_name() -> None:
    with pytest.raises(CudaUnavailableError, match="CUDA cannot be used here"):
        load_runtime()
