"""Memory of PyTorch's large CPU tensors: what was freed is used again, and no more stays than was live at once.

malloc either gives a large block back to the system when it is freed, so that the next one pays for fresh
pages, or keeps it for blocks that it happens to fit, so that memory which training freed stays resident. The
pool, in `tensor_pool.cpp`, does neither.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

import torch

from shorthaul.errors import CompileError, KernelLoadError, NoCompilerError
from shorthaul.host_memory import when_giving_back
from shorthaul.jit import CppSource, Function, NumberArgument, load_kernel

# malloc serves smaller ones from its heap, without a system call.
SMALLEST_BYTES = 2**20
# Addresses, not memory. Blocks of many sizes leave gaps; so many of them are never all in use.
ADDRESSES_PER_BYTE = 4

_FUNCTIONS = (
    Function(
        "pool_open",
        tuple(NumberArgument(name, "int64") for name in ("capacity_bytes", "smallest", "largest")),
        "int64",
    ),
    Function("pool_look", (NumberArgument("facts", "address"),)),
    Function("pool_return_idle", ()),
)


@dataclass(frozen=True)
class PoolFacts:
    """What a pool has handed out, in bytes of whole granules; `Facts` in `tensor_pool.cpp`."""

    live_bytes: int  # that tensors have
    idle_bytes: int  # that were freed, and whose pages are kept
    peak_live_bytes: int  # the most that tensors had at once
    fresh_bytes: int  # that had to be mapped, ever
    returned_bytes: int  # that went back to the system, ever
    allocations: int  # ever


class PoolUnavailableError(Exception):
    """The reason for which tensors stay with the C library's allocator; it never leaves this package."""


class TensorPool:
    """The process's pool, from which every CPU tensor of at least 1 MiB is made once it is open."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def open(cls) -> TensorPool:
        """Compile and install it, or a `PoolUnavailableError` that says why not.

        It stays for as long as the process lives: tensors that it made may.
        """
        try:
            kernel = load_kernel(emit_pool())
        except (CompileError, KernelLoadError, NoCompilerError) as error:
            raise PoolUnavailableError(str(error)) from error
        library = ctypes.CDLL(str(kernel.entry.library))
        library.pool_open.restype = ctypes.c_int64
        library.pool_open.argtypes = [ctypes.c_int64] * 3
        library.pool_look.argtypes = [ctypes.c_void_p]
        library.pool_look.restype = library.pool_return_idle.restype = None
        physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # What is larger than the machine is refused by malloc, in PyTorch's own words.
        refused = library.pool_open(
            ADDRESSES_PER_BYTE * physical_bytes, SMALLEST_BYTES, physical_bytes
        )
        if refused:
            raise PoolUnavailableError(f"no addresses could be reserved: {os.strerror(refused)}")
        pool = cls(library)
        when_giving_back(pool.return_idle)
        return pool

    def look(self) -> PoolFacts:
        """What it has handed out, and what it keeps."""
        facts = (ctypes.c_int64 * len(fields(PoolFacts)))()
        self._library.pool_look(facts)
        return PoolFacts(*facts)

    def return_idle(self) -> None:
        """Give to the system what no tensor has, and forget how much was live before."""
        self._library.pool_return_idle()


def emit_pool() -> CppSource:
    """The pool's source, for the headers of the PyTorch that runs."""
    folder = Path(torch.__file__).parent
    text = (resources.files("shorthaul.allocator") / "tensor_pool.cpp").read_text(encoding="utf-8")
    return CppSource(
        "tensor_pool",
        f"// PyTorch {torch.__version__}: its classes are laid out by its headers.\n{text}",
        _FUNCTIONS,
        (
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            "-isystem",
            str(folder / "include"),
            f"-L{folder / 'lib'}",
            "-lc10",
            "-pthread",
        ),
    )
