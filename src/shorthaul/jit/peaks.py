"""What this machine can do at most: multiply-adds per second, and bytes per second to memory.

Every other figure is read against these two. The kernels are generated and run like any other of
shorthaul's, on PyTorch's threads; each figure is the best of several runs, because whatever else
the machine does can only make a run slower.

>>> print(emit_multiply_add(chains=2))  # doctest: +ELLIPSIS
// 2 independent chains of multiply-adds on full vectors: as many floating operations as the ...
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shorthaul.jit.kernel import load_kernel
from shorthaul.jit.runtime import kernel_threads
from shorthaul.jit.source import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
)

# An FMA unit starts one operation per cycle and answers four or five cycles later, and processors
# have two (x86) or four (ARM servers) of them: 8 to 20 chains must be under way. 12 chains and two
# constants fit the 16 registers of AVX2; 24 fit the 32 of AVX-512 and NEON, and spill on AVX2. Both
# are measured and the better one counts, so nobody has to tell which processor this is.
CHAINS = (12, 24)
RUNS = 7
RUN_SECONDS = 0.01  # long against the start of a parallel region (microseconds)

# Four times the last-level cache, so that no part of it is found there by the next run.
BEYOND_CACHE = 4
SMALLEST_STREAM_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Rates:
    """Best rate with one thread and with all of PyTorch's threads."""

    one_thread: float
    all_threads: float
    threads: int


@dataclass(frozen=True)
class MemoryRates:
    """Bytes per second; a copy counts what it reads and what it writes."""

    copy: Rates
    read: Rates
    stream_bytes: int


def emit_multiply_add(chains: int) -> str:
    """C++ text of `multiply_add_<chains>`, which returns how many floating operations it did.

    Chains start at `sums` of their thread, and leave their sum there.
    """
    lines = [
        f"// {chains} independent chains of multiply-adds on full vectors: as many floating "
        "operations as the",
        "// processor can start. Every chain tends to 1, far from denormal numbers.",
        f"int64_t multiply_add_{chains}(float* sums, int64_t steps, int64_t threads) {{",
        "  int64_t team = 1;",
        "  shorthaul::on_each_thread(threads, [&](int64_t thread, int64_t size) {",
        "    const Vector factor = Vector{} + 0.75f, term = Vector{} + 0.25f;",
        "    const Vector first = Vector{} + sums[thread];  // read: a known chain at 1 would be left out",
        *(f"    Vector chain_{each} = first + {each}.0f;" for each in range(chains)),
        "    for (int64_t step = 0; step < steps; ++step) {",
        *(f"      chain_{each} = chain_{each} * factor + term;" for each in range(chains)),
        "    }",
        f"    chain_0 += {' + '.join(f'chain_{each}' for each in range(1, chains))};",
        "    sums[thread] = chain_0[0];  // used, so the compiler must compute it",
        "    if (thread == 0) team = size;",
        "  });",
        f"  return team * steps * {chains} * LANES * 2;  // a multiplication and an addition",
        "}",
    ]
    return "\n".join(lines)


def emit_multiply_add_source() -> CppSource:
    """The source of the multiply-add kernels, vectors as wide as the compiler's target has."""
    heading = """\
#include "shorthaul/jit/include/parallel.h"

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
"""
    functions = tuple(
        Function(
            f"multiply_add_{chains}",
            (
                TensorArgument("sums", torch.float32, ("threads",), is_written=True),
                NumberArgument("steps", "int64"),
                DimensionArgument("threads"),
            ),
            returns="int64",
        )
        for chains in CHAINS
    )
    text = "\n\n".join((heading, *(emit_multiply_add(chains) for chains in CHAINS)))
    return CppSource("multiply_add_peak", text, functions)


def emit_stream_source() -> CppSource:
    """The source of `copy_stream` and `read_stream`."""
    text = """\
#include <cstring>

#include "shorthaul/jit/include/parallel.h"

constexpr int64_t GRAIN = 512;  // words: chunk edges at pages

// Copies as memcpy does, one contiguous chunk per thread.
void copy_stream(const int64_t* source, int64_t* target, int64_t threads, int64_t n) {
  shorthaul::parallel_for(n, GRAIN, threads, [&](int64_t begin, int64_t end) {
    std::memcpy(target + begin, source + begin, (end - begin) * sizeof(int64_t));
  });
}

// Reads every word, one contiguous chunk per thread. Whole numbers may be summed in any order, so
// the compiler makes vectors of them.
int64_t read_stream(const int64_t* source, int64_t threads, int64_t n) {
  uint64_t total = 0;
  shorthaul::parallel_for(n, GRAIN, threads, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += static_cast<uint64_t>(source[i]);
    __atomic_fetch_add(&total, sum, __ATOMIC_RELAXED);
  });
  return static_cast<int64_t>(total);
}
"""
    source = TensorArgument("source", torch.int64, ("n",))
    target = TensorArgument("target", torch.int64, ("n",), is_written=True)
    threads, n = NumberArgument("threads", "int64"), DimensionArgument("n")
    return CppSource(
        "memory_stream",
        text,
        (
            Function("copy_stream", (source, target, threads, n)),
            Function("read_stream", (source, threads, n), returns="int64"),
        ),
    )


def measure_multiply_adds() -> Rates:
    """Floating operations (float32) per second."""
    functions = load_kernel(emit_multiply_add_source()).functions.values()
    threads = kernel_threads()

    def best_rate(threads: int) -> float:
        # One for each thread that the kernel shall use: where it starts.
        sums = torch.zeros(threads, dtype=torch.float32, device="cpu")
        rates: list[float] = []
        for function, steps in zip(functions, all_steps, strict=True):
            operations = function(sums, steps)
            rates.append(operations / _best_seconds(functools.partial(function, sums, steps)))
        return max(rates)

    all_steps = [
        choose_steps(functools.partial(each, torch.zeros(1, dtype=torch.float32, device="cpu")))
        for each in functions
    ]
    return Rates(best_rate(1), best_rate(threads), threads)


def measure_memory(stream_bytes: int) -> MemoryRates:
    """Bytes per second of copying and of reading `stream_bytes`, which no cache can hold."""
    kernel = load_kernel(emit_stream_source())
    threads = kernel_threads()
    source = torch.ones(stream_bytes // 8, dtype=torch.int64, device="cpu")
    target = torch.zeros_like(source)

    def copy(threads: int) -> float:
        return 2 * stream_bytes / _best_seconds(lambda: kernel.copy_stream(source, target, threads))

    def read(threads: int) -> float:
        return stream_bytes / _best_seconds(lambda: kernel.read_stream(source, threads))

    return MemoryRates(
        copy=Rates(copy(1), copy(threads), threads),
        read=Rates(read(1), read(threads), threads),
        stream_bytes=stream_bytes,
    )


def choose_stream_bytes(cache_bytes: int, available_bytes: int) -> int:
    """How much to stream: beyond every cache, but two streams in a quarter of the free memory."""
    wanted = max(SMALLEST_STREAM_BYTES, BEYOND_CACHE * cache_bytes)
    page = 4096
    return max(page, min(wanted, available_bytes // 8) // page * page)


def choose_steps(work: Callable[[int], object]) -> int:
    """How many steps take `work(steps)` about `RUN_SECONDS`, in the best of three runs.

    The best, because on a busy machine a short run may take long for reasons of its own.
    """
    steps = 1 << 14
    while _best_seconds(functools.partial(work, steps), runs=3) < RUN_SECONDS:
        steps *= 2
    return steps


def _best_seconds(work: Callable[[], object], runs: int = RUNS) -> float:
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best
