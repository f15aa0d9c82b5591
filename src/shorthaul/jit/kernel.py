"""A compiled kernel that takes tensors and numbers.

Every contract (dtype, device, contiguity, shapes that must agree) is checked before the call, so
that a wrong argument is a `KernelArgumentError` and never a wild pointer. The call itself releases
the GIL.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from shorthaul.errors import KernelArgumentError, KernelStatusError, NoCompilerError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.kernel_cache import CacheEntry, KernelCache
from shorthaul.jit.runtime import find_openmp, kernel_threads
from shorthaul.jit.source import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)
from shorthaul.jit.toolchain import find_toolchain
from shorthaul.meter import record_launch
from shorthaul.settings import settings

_NUMBER_CTYPES: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
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
        self._kernel_name = kernel_name
        self._call = library[function.name]
        self._call.restype = _RETURN_CTYPES[function.returns]
        self._call.argtypes = [
            ctypes.c_void_p
            if isinstance(each, TensorArgument)
            else _NUMBER_CTYPES[each.type]
            if isinstance(each, NumberArgument)
            else ctypes.c_int64
            for each in function.arguments
        ]
        self._passed = tuple(
            each for each in function.arguments if isinstance(each, TensorArgument | NumberArgument)
        )
        self._returns_status = function.returns == "status"

    def __call__(self, *values: Any) -> Any:
        """Check every contract, then run the function without the GIL."""
        if len(values) != len(self._passed):
            expected = ", ".join(each.name for each in self._passed)
            raise KernelArgumentError(
                self.name, "*", f"{len(self._passed)} values ({expected})", f"{len(values)}"
            )
        sizes: dict[str, int] = {}
        remaining = iter(values)
        passed: list[Any] = []
        for argument in self.function.arguments:
            if isinstance(argument, TensorArgument):
                passed.append(self._pointer(argument, next(remaining), sizes))
            elif isinstance(argument, NumberArgument):
                passed.append(next(remaining))
            elif isinstance(argument, ThreadsArgument):
                passed.append(kernel_threads())
            else:
                passed.append(argument)  # a dimension: known once every tensor has been seen
        for position, value in enumerate(passed):
            if isinstance(value, DimensionArgument):
                passed[position] = sizes[value.name]
        record_launch(self._kernel_name)
        try:
            result = self._call(*passed)
        except ctypes.ArgumentError as error:
            raise self._wrong_number(passed, error) from None
        if self._returns_status and result != 0:
            raise KernelStatusError(self.name, result)
        return result

    def _pointer(
        self, argument: TensorArgument, tensor: torch.Tensor | None, sizes: dict[str, int]
    ) -> int | None:
        if tensor is None and argument.is_optional:
            return None
        if not isinstance(tensor, torch.Tensor):
            raise self._wrong(argument, "a tensor", type(tensor).__name__)
        if tensor.dtype is not argument.dtype:
            raise self._wrong(argument, f"of {argument.dtype}", str(tensor.dtype))
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            raise self._wrong(argument, "a dense CPU tensor", f"{tensor.layout} on {tensor.device}")
        if argument.is_contiguous and not tensor.is_contiguous():
            raise self._wrong(
                argument, "contiguous", f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            )
        if argument.shape is not None:
            self._check_shape(argument, argument.shape, tensor.shape, sizes)
        return tensor.data_ptr()

    def _check_shape(
        self,
        argument: TensorArgument,
        expected: tuple[int | str | None, ...],
        shape: torch.Size,
        sizes: dict[str, int],
    ) -> None:
        agrees = len(shape) == len(expected)
        if agrees:
            for want, have in zip(expected, shape, strict=True):
                if isinstance(want, str):
                    agrees &= sizes.setdefault(want, have) == have
                else:
                    agrees &= want is None or want == have
        if not agrees:
            known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            wanted = ", ".join("any" if size is None else str(size) for size in expected)
            raise self._wrong(
                argument,
                f"of shape ({wanted})" + (f" with {known}" if known else ""),
                f"{tuple(shape)}",
            )

    def _wrong(self, argument: TensorArgument, expected: str, got: str) -> KernelArgumentError:
        return KernelArgumentError(self.name, argument.name, expected, got)

    def _wrong_number(self, passed: list[Any], error: ctypes.ArgumentError) -> KernelArgumentError:
        for argument, value in zip(self.function.arguments, passed, strict=True):
            if isinstance(argument, NumberArgument):
                try:
                    _NUMBER_CTYPES[argument.type](value)
                except TypeError:
                    return KernelArgumentError(
                        self.name, argument.name, f"a number ({argument.type})", repr(value)
                    )
        return KernelArgumentError(self.name, "*", "numbers that fit their types", str(error))


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
