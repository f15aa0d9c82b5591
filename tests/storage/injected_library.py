"""The compiled transfers, built so that a test can say what the next answers of the kernel are."""

from __future__ import annotations

import ctypes
import functools

from shorthaul.storage.uring_engine import RingLibrary, emit_ring

NOTHING_MOVED = 2**62  # 0 leaves an answer as it was; negative is an errno; else at most so many


@functools.cache
def load_injected_library() -> RingLibrary:
    library = RingLibrary(emit_ring(definitions="#define SHORTHAUL_INJECT 1\n"))
    functions = ctypes.CDLL(library.path)
    library.ring_inject = functions.ring_inject
    library.ring_inject.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    library.read_inject = functions.read_inject
    library.read_inject.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    return library


def as_answers(results: tuple[int, ...]) -> tuple[ctypes.Array[ctypes.c_int64], int]:
    return (ctypes.c_int64 * len(results))(*results), len(results)
