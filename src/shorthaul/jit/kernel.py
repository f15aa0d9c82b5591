"""A compiled kernel that takes tensors and numbers.

Every contract (dtype, device, contiguity, shapes that must agree) is checked before the call, so
that a wrong argument is a `KernelArgumentError` and never a wild pointer. The call itself releases
the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable
from typing import Any

import torch

from shorthaul.errors import KernelStatusError, NoCompilerError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.contract import emit_caller, refuse
from shorthaul.jit.kernel_cache import CacheEntry, KernelCache
from shorthaul.jit.runtime import find_openmp, kernel_threads
from shorthaul.jit.source import CppSource, Function, NumberArgument, TensorArgument
from shorthaul.jit.toolchain import find_toolchain
from shorthaul.meter import record_launch
from shorthaul.settings import settings

_NUMBER_CTYPES: dict[str, Any] = {
    "int64": ctypes.c_int64,
    "float64": ctypes.c_double,
    "address": ctypes.c_void_p,
}
_RETURN_CTYPES: dict[str, Any] = {
    "nothing": None,
    "status": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "address": ctypes.c_void_p,
}


class KernelFunction:
    """One exported function, called with its tensors and numbers in order.

    Dimensions and the thread count are filled in: `scale(x, 2.0, out)` calls
    `scale(x, factor, out, n, threads)`.
    """

    def __init__(self, kernel_name: str, function: Function, library: ctypes.CDLL) -> None:
        self.name = f"{kernel_name}.{function.name}"
        self.function = function
        compiled = library[function.name]
        compiled.restype = _RETURN_CTYPES[function.returns]
        compiled.argtypes = [
            ctypes.c_void_p
            if isinstance(each, TensorArgument)
            else _NUMBER_CTYPES[each.type]
            if isinstance(each, NumberArgument)
            else ctypes.c_int64
            for each in function.arguments
        ]
        scope = {
            "compiled": compiled,
            "index": operator.index,
            "kernel_threads": kernel_threads,
            "record_launch": functools.partial(record_launch, kernel_name),
            "refuse": functools.partial(refuse, self.name, function),
            "torch": torch,
        }
        exec(emit_caller(function), scope)
        self._caller: Callable[..., Any] = scope["caller"]  # type: ignore[assignment]
        self._returns_status = function.returns == "status"

    def __call__(self, *values: Any) -> Any:
        """Check every contract, then run the function without the GIL."""
        result = self._caller(*values)
        if self._returns_status and result != 0:
            raise KernelStatusError(self.name, result)
        return result


class Kernel:
    """The functions of one shared object, as attributes."""

    def __init__(self, source: CppSource, entry: CacheEntry) -> None:
        self.source = source
        self.entry = entry
        self.name = f"{source.name}_{entry.digest[:8]}"
        library = ctypes.CDLL(str(entry.library))
        openmp = find_openmp()
        if openmp is not None and "shorthaul/parallel.h" in source.headers():
            bind: Callable[..., None] = library["shorthaul_bind_runtime"]
            bind(
                *map(
                    ctypes.c_void_p,
                    (openmp.parallel_region, openmp.thread_number, openmp.team_size),
                )
            )
        self.functions = {
            each.name: KernelFunction(source.name, each, library) for each in source.functions
        }

    def __getattr__(self, name: str) -> KernelFunction:
        functions = self.__dict__.get("functions", {})
        if name not in functions:
            raise AttributeError(
                f"{self.__dict__.get('name')} exports {sorted(functions)}, not {name}"
            )
        function: KernelFunction = functions[name]
        return function

    def explain(self) -> str:
        """Where the kernel lies, how it was compiled, and its source."""
        directory = self.entry.directory
        return (
            f"{self.name}: {', '.join(each.prototype() for each in self.source.functions)}\n"
            f"in {directory}, compiled in {self.entry.compile_seconds:.2f} s by\n"
            f"{(directory / 'compile.sh').read_text()}\n"
            f"{(directory / 'kernel.cpp').read_text()}"
        )

    def __repr__(self) -> str:
        return f"Kernel({self.name}: {', '.join(self.functions)})"


_loaded: dict[str, Kernel] = {}
_loading = threading.Lock()


def load_kernel(source: CppSource) -> Kernel:
    """The kernel for `source`: from this process, else from the cache, else compiled now.

    >>> import torch
    >>> from shorthaul.jit import CppSource, DimensionArgument, Function, TensorArgument, load_kernel
    >>> twice = CppSource(
    ...     "twice",
    ...     "void twice(float* x, int64_t n) { for (int64_t i = 0; i < n; ++i) x[i] *= 2; }",
    ...     (
    ...         Function(
    ...             "twice",
    ...             (
    ...                 TensorArgument("x", torch.float32, ("n",), is_written=True),
    ...                 DimensionArgument("n"),
    ...             ),
    ...         ),
    ...     ),
    ... )
    >>> x = torch.ones(3)
    >>> load_kernel(twice).twice(x)
    >>> x
    tensor([2., 2., 2.])
    """
    toolchain = find_toolchain()
    digest = source.digest(toolchain.fingerprint)
    with _loading:
        kernel = _loaded.get(digest)
        if kernel is None:
            kernel = Kernel(source, KernelCache().find_or_build(source, toolchain))
            _loaded[digest] = kernel
        return kernel


def can_use_kernels(part: str) -> bool:
    """Whether `part` should use its generated kernels here, or its plain PyTorch fallback.

    Obeys `settings.kernels`; under `auto`, no compiler means the fallback, noted once.
    """
    if settings.kernels == "torch":
        note_fallback(part, "plain PyTorch", "SHORTHAUL_KERNELS is torch")
        return False
    try:
        find_toolchain()
    except NoCompilerError as error:
        if settings.kernels == "generated":
            raise
        note_fallback(part, "plain PyTorch", str(error).splitlines()[0].rstrip("."))
        return False
    return True
