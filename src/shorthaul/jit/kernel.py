"""A compiled kernel that takes tensors and numbers.

Every contract (dtype, device, contiguity, shapes that must agree) is checked before the call, so
that a wrong argument is a `KernelArgumentError` and never a wild pointer. The call itself releases
the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeAlias

import torch

from shorthaul.errors import CompileError, KernelLoadError, KernelStatusError, NoCompilerError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.caller_cache import load_callers
from shorthaul.jit.contract import emit_caller, real, refuse
from shorthaul.jit.kernel_cache import CacheEntry, KernelCache
from shorthaul.jit.runtime import find_openmp, kernel_threads
from shorthaul.jit.source import CppSource, Function, NumberArgument, TensorArgument
from shorthaul.jit.toolchain import Toolchain, find_toolchain
from shorthaul.meter import listening, record_launch
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
    """One exported function, called with its tensors and numbers in order. Made by `load_kernel`.

    Dimensions and the thread count are filled in: `scale(x, 2.0, out)` calls
    `scale(x, factor, out, n, threads)`.
    """

    def __init__(
        self, source: CppSource, function: Function, library: ctypes.CDLL, caller: CodeType
    ) -> None:
        self.name = f"{source.name}.{function.name}"
        self.source = source
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
        self.compiled = compiled  # as it is in C: nothing is checked, counted or reported
        self._record_launch = functools.partial(record_launch, source.name)
        scope = {
            "_compiled": compiled,
            "_kernel_threads": kernel_threads,
            "_real": real,
            "_listening": listening,
            "_record_launch": self._record_launch,
            "_refuse": functools.partial(refuse, self.name, function),
            "_torch": torch,
            "_whole": operator.index,
        }
        exec(caller, scope)
        self._caller: Callable[..., Any] = scope["caller"]  # type: ignore[assignment]
        self._returns_status = function.returns == "status"

    def __call__(self, *values: Any) -> Any:
        """Check every contract, then run the function without the GIL."""
        result = self._caller(*values)
        if self._returns_status and result != 0:
            raise KernelStatusError(self.name, result)
        return result

    def at(self, *values: Any) -> Any:
        """Run the function on addresses in place of tensors, with its dimensions and threads written out.

        Nothing is checked, which takes most of a call's time: for plans that are kept, and whose
        contract was checked when they were made.
        """
        if listening:
            self._record_launch()
        result = self.compiled(*values)
        if self._returns_status and result != 0:
            raise KernelStatusError(self.name, result)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied model, or a worker that is handed one, finds its kernels by their source.
        return _load_function, (self.source, self.function.name)


class Kernel:
    """The functions of one shared object, as attributes. Made by `load_kernel`."""

    def __init__(self, source: CppSource, entry: CacheEntry) -> None:
        self.source = source
        self.entry = entry
        self.name = f"{source.name}_{entry.digest[:8]}"
        library = _open_library(entry)
        openmp = find_openmp()
        if openmp is not None and "shorthaul/jit/include/parallel.h" in source.headers():
            bind: Callable[..., None] = library["shorthaul_bind_runtime"]
            bind(
                *map(
                    ctypes.c_void_p,
                    (openmp.parallel_region, openmp.thread_number, openmp.team_size),
                )
            )
        for each in source.functions:
            if not hasattr(library, each.name):
                raise CompileError(
                    "linking",
                    self.name,
                    entry.directory / "kernel.cpp",
                    entry.directory / "compile.sh",
                    f"`{each.prototype()}` is declared, but nothing with these types is defined",
                )
        callers = load_callers(entry.directory, [emit_caller(each) for each in source.functions])
        self.functions = {
            each.name: KernelFunction(source, each, library, caller)
            for each, caller in zip(source.functions, callers, strict=True)
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
        script = self.entry.directory / "compile.sh"
        command = script.read_text() if script.is_file() else "(removed from the cache since)\n"
        return (
            f"{self.name}: {', '.join(each.prototype() for each in self.source.functions)}\n"
            f"in {self.entry.directory}, compiled in {self.entry.compile_seconds:.2f} s by\n"
            f"{command}\n"
            f"{self.source.complete_text()}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return load_kernel, (self.source,)

    def __repr__(self) -> str:
        return f"Kernel({self.name}: {', '.join(self.functions)})"


def _load_function(source: CppSource, name: str) -> KernelFunction:
    return load_kernel(source).functions[name]


def _open_library(entry: CacheEntry) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(entry.library))
    except OSError as error:
        raise KernelLoadError(entry.library, str(error)) from error


# By digest and contracts: the same object may be called as float16 here and as bfloat16 there.
KernelKey: TypeAlias = tuple[str, tuple[Function, ...]]
_loaded: dict[KernelKey, Kernel] = {}


def load_kernel(source: CppSource) -> Kernel:
    """The kernel for `source`: from this process, else from the cache, else compiled now.

    Keep it: finding it again takes a digest of the source, tens of microseconds.

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
    kernel = find_loaded(kernel_key(source, toolchain))
    return find_kernel(source, toolchain, KernelCache()) if kernel is None else kernel


def kernel_key(source: CppSource, toolchain: Toolchain) -> KernelKey:
    """What tells a loaded kernel from all others.

    Args:
        source: Its source.
        toolchain: The compiler.
    """
    return source.digest(toolchain.fingerprint), source.functions


def find_loaded(key: KernelKey) -> Kernel | None:
    """The kernel of this key that this process has loaded already, or None.

    Args:
        key: From `kernel_key`.
    """
    return _loaded.get(key)


def find_kernel(source: CppSource, toolchain: Toolchain, cache: KernelCache) -> Kernel:
    """The kernel from the cache, compiled now if it is missing.

    Args:
        source: The kernel's text, functions and flags.
        toolchain: The compiler.
        cache: Where it lies, or shall lie.
    """
    entry = cache.find_or_build(source, toolchain)
    try:
        kernel = Kernel(source, entry)
    except KernelLoadError:
        if entry.library.exists():
            raise
        # Another process made room in the cache, or cleared it, since the entry was found.
        kernel = Kernel(source, cache.find_or_build(source, toolchain))
    # No lock: the cache lets one thread or process compile and the others wait, and threads that want
    # different kernels shall compile them at the same time.
    return _loaded.setdefault(kernel_key(source, toolchain), kernel)


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
