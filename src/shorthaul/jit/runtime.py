"""The OpenMP runtime that kernels share with PyTorch, and how many threads they use.

`dlsym` on PyTorch's own library searches that library's dependencies too, so it finds the runtime
that PyTorch is linked to, whatever its file is called and however many others are installed.
docs/jit.md has what a second runtime would cost.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from shorthaul.fallbacks import note_fallback

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class OpenMPRuntime:
    """Addresses in the runtime that PyTorch uses, and the file that it came from."""

    path: str
    parallel_region: int
    thread_number: int
    team_size: int


class _SymbolOrigin(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@functools.cache
def find_openmp() -> OpenMPRuntime | None:
    """PyTorch's OpenMP runtime; `None`, noted as a fallback, where it has none that fits."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        addresses = [
            ctypes.cast(library[symbol], ctypes.c_void_p).value or 0
            for symbol in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        ]
    except (OSError, AttributeError) as error:
        note_fallback("kernel threads", "one thread", f"PyTorch's OpenMP was not found ({error})")
        return None
    origin = _SymbolOrigin()
    find_origin = ctypes.CDLL(None).dladdr
    find_origin(ctypes.c_void_p(addresses[0]), ctypes.byref(origin))
    return OpenMPRuntime((origin.file or b"unknown").decode(), *addresses)


# A forked child inherits the runtime's idea of its pool, but none of the pool's threads: entering a
# parallel region there hangs, PyTorch's own operators included. So a child that calls us stays on its
# own thread from then on, as PyTorch's data loader workers do; backward passes run when no call of ours
# is under way, so this does not end with the call. At the fork itself nothing is set: most children
# never compute, and PyTorch's locks may be held by threads that the child does not have.
_is_forked_child = False
_is_alone = False


def _note_fork() -> None:
    global _is_forked_child, _is_alone
    _is_forked_child, _is_alone = True, False


os.register_at_fork(after_in_child=_note_fork)


def stay_alone_after_fork() -> None:
    """In a forked child: kernels and PyTorch's operators keep to their caller's thread from now on.

    Nothing elsewhere. A child that sets PyTorch's number of threads after its first call is obeyed for
    PyTorch's operators.
    """
    global _is_alone
    if _is_alone or not _is_forked_child:
        return
    _is_alone = True
    if torch.get_num_threads() > 1:
        _tell_of_fork()
        torch.set_num_threads(1)


# A graph that was compiled before the fork is not compiled again after it: its kernels ask when they run. So
# `torch.compiler.assume_constant_result` marks a function, which takes a second to import what compiles graphs.
stay_alone_after_fork._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _tell_of_fork() -> None:
    note_fallback("threads", "one thread", "this process was forked, not spawned")


def alone_after_fork(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Have `function` begin with `stay_alone_after_fork`."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if _is_forked_child:
            stay_alone_after_fork()
        return function(*args, **kwargs)

    return run


_limits = threading.local()


@contextlib.contextmanager
def limited_threads(most: int) -> Iterator[None]:
    """Limit the kernels that this Python thread calls to `most` threads: work beside other work.

    >>> with limited_threads(1):
    ...     kernel_threads()
    1
    """
    before = getattr(_limits, "most", None)
    _limits.most = most
    try:
        yield
    finally:
        _limits.most = before


def kernel_threads(asked: int | None = None) -> int:
    """Threads that a kernel called now should use: `asked`, else PyTorch's; one in a forked child."""
    threads = torch.get_num_threads() if asked is None else asked
    most = getattr(_limits, "most", None)
    if most is not None:
        threads = min(threads, most)
    if threads > 1 and _is_forked_child:
        stay_alone_after_fork()
        _tell_of_fork()
        return 1
    return threads
