"""What does a second OpenMP runtime cost?

A kernel that runs on all threads takes turns with an operation of PyTorch that does too, as in any
training step. Once the kernel uses the runtime that PyTorch brought, as shorthaul's kernels do;
once a private copy of the same runtime, as a kernel linked with `-fopenmp` can get. Each runtime
keeps its idle threads spinning for the next loop, on the cores that the other's threads need.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_bits
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    TensorArgument,
    ThreadsArgument,
    load_kernel,
)
from shorthaul.jit.runtime import find_openmp

# PyTorch uses a second thread from 32,768 numbers on.
SIZES = (100_000, 1_000_000, 10_000_000)
SHARED, SECOND = "PyTorch's runtime", "a second runtime"

DOUBLE = CppSource(
    "double_shared",
    """\
#include "shorthaul/jit/include/parallel.h"

void twice(const float* x, float* out, int64_t n, int64_t threads) {
  shorthaul::parallel_for(n, 1024, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] * 2;
  });
}
""",
    (
        Function(
            "twice",
            (
                TensorArgument("x", torch.float32, ("n",)),
                TensorArgument("out", torch.float32, ("n",), is_written=True),
                DimensionArgument("n"),
                ThreadsArgument(),
            ),
        ),
    ),
)


def measure(answer: Answer) -> None:
    threads = torch.get_num_threads()
    answer.state(
        omp_wait_policy=os.environ.get("OMP_WAIT_POLICY", "default"),
        omp_threads=f"{threads} in each runtime",
    )
    shared = load_kernel(DOUBLE)
    with second_runtime() as runtime:
        second = load_kernel(replace(DOUBLE, name="double_second"))
        bind(second, runtime)
        for size in SIZES:
            kernels = {SHARED: shared, SECOND: second}
            answer.compare(
                f"kernel and PyTorch in turns, {size:,} numbers",
                [Arm(name, take_turns(kernel, size)) for name, kernel in kernels.items()],
                baseline=SECOND,
                same=same_bits,
                sample_seconds=0.2,
            )
        answer.compare(
            f"the kernel alone, {SIZES[0]:,} numbers",
            [Arm(name, run_alone(kernel, SIZES[0])) for name, kernel in kernels.items()],
            baseline=SECOND,
            same=same_bits,
            sample_seconds=0.2,
        )


def take_turns(kernel: Kernel, size: int) -> Callable[[], list[torch.Tensor]]:
    """A kernel and an operation of PyTorch, each on all threads."""
    x = torch.arange(float(size))
    out, more = torch.empty(size), torch.empty(size)

    def run() -> list[torch.Tensor]:
        kernel.twice(x, out)
        torch.add(out, 1, out=more)
        return [out, more]

    return run


def run_alone(kernel: Kernel, size: int) -> Callable[[], torch.Tensor]:
    """The kernel, with nobody between its calls."""
    x, out = torch.arange(float(size)), torch.empty(size)

    def run() -> torch.Tensor:
        kernel.twice(x, out)
        return out

    return run


@contextlib.contextmanager
def second_runtime() -> Iterator[ctypes.CDLL]:
    """A copy of PyTorch's own runtime: another file, so the system loads it as another library."""
    openmp = find_openmp()
    if openmp is None:
        raise RuntimeError("PyTorch has no OpenMP runtime here that a kernel could share")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "second-runtime.so"
        shutil.copy(openmp.path, copy)
        # Deep: its own names before those of the runtime that is loaded already.
        yield ctypes.CDLL(str(copy), mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)


def bind(kernel: Kernel, runtime: ctypes.CDLL) -> None:
    """Hand the kernel another runtime than the one it got when it was loaded."""
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    addresses = [ctypes.cast(runtime[name], ctypes.c_void_p) for name in names]
    ctypes.CDLL(str(kernel.entry.library))["shorthaul_bind_runtime"](*addresses)


if __name__ == "__main__":
    answer_question(measure)
