"""Probes of everything that generated kernels need, and of how fast they can be.

Imports stand inside the probes: what cannot be imported is itself a finding.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from shorthaul.cli.findings import Finding
from shorthaul.cli.probes import machine
from shorthaul.settings import settings

LISTENING_SECONDS = 0.25


def look_for_torch() -> Finding:
    """PyTorch itself, and the Python that it runs on."""
    import torch

    version = str(torch.__version__)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Finding(
        "torch",
        "ok",
        f"{version} ({build}), Python {platform.python_version()}",
        facts={"torch": version, "python": platform.python_version()},
    )


def look_for_compiler() -> Finding:
    """The C++ compiler that kernels are made with."""
    from shorthaul.jit import find_toolchain

    toolchain = find_toolchain()
    return Finding(
        "compiler",
        "ok",
        f"{toolchain.version}, {' '.join(toolchain.command)}",
        facts={"command": list(toolchain.command), "version": toolchain.version},
    )


def look_at_processor() -> Finding:
    """The processor, and those of its features that kernels make use of."""
    from shorthaul.jit.toolchain import read_processor

    processor = read_processor()
    features = machine.choose_notable_features(processor.features)
    return Finding(
        "processor",
        "ok",
        f"{processor.model}: {' '.join(features) or 'no vector features known'}",
        facts={"model": processor.model, "features": list(features)},
    )


def try_kernel() -> Finding:
    """Compile a small kernel, run it, and compare its result with PyTorch."""
    if settings.kernels == "torch":
        return Finding(
            "generated kernels",
            "warning",
            "switched off: plain PyTorch is used instead",
            "unset SHORTHAUL_KERNELS to use them",
        )
    from shorthaul.cli.trials.sample_kernel import run_sample

    run = run_sample()
    entry = run.kernel.entry
    facts = {"kernel": run.kernel.name, "compile_seconds": entry.compile_seconds}
    if not run.is_equal:
        return Finding(
            "generated kernels",
            "broken",
            f"{run.kernel.name} computes other numbers than PyTorch",
            f"please report this with {entry.directory}",
            facts,
        )
    return Finding(
        "generated kernels",
        "ok",
        f"compiled in {entry.compile_seconds:.2f} s, equal to PyTorch on {run.elements:,} numbers",
        facts=facts,
    )


def look_at_threads() -> Finding:
    """How many threads PyTorch and the kernels use, and how many the machine lends us."""
    import torch

    usable = len(os.sched_getaffinity(0))
    limit = machine.read_processor_limit(_read(Path("/sys/fs/cgroup/cpu.max")), usable)
    return describe_threads(torch.get_num_threads(), usable, limit)


def describe_threads(threads: int, usable: int, limit: float) -> Finding:
    """The thread count as a finding: `limit` is how many processors may be kept busy."""
    facts = {"threads": threads, "usable_processors": usable, "processor_limit": limit}
    value = f"{threads}, as torch.get_num_threads() says; {usable} processors are usable"
    if limit < usable:
        value += f", with time for {limit:g}"
    if threads <= limit or threads == 1:
        return Finding("threads", "ok", value, facts=facts)
    advice = (
        f"more threads than processors wait for each other: OMP_NUM_THREADS={max(1, int(limit))}"
    )
    return Finding("threads", "warning", value, advice, facts)


def look_for_openmp() -> Finding:
    """The OpenMP runtime that kernels share with PyTorch; others are a slowdown."""
    from shorthaul.jit.runtime import find_openmp

    runtime = find_openmp()
    mapped = machine.find_openmp_libraries(_read(Path("/proc/self/maps")))
    return describe_openmp(runtime.path if runtime else None, mapped)


def describe_openmp(runtime: str | None, mapped: tuple[str, ...]) -> Finding:
    """PyTorch's runtime and all those in this process as a finding."""
    facts = {"runtime": runtime, "mapped": list(mapped)}
    if runtime is None:
        value = "PyTorch's runtime was not found, so kernels use one thread"
        return Finding("OpenMP", "warning", value, facts=facts)
    others = [each for each in mapped if Path(each).resolve() != Path(runtime).resolve()]
    if others:
        value = f"{len(others) + 1} runtimes in this process; kernels use {runtime}"
        advice = (
            f"pools of threads on the same processors slow each other down: {', '.join(others)}"
        )
        return Finding("OpenMP", "warning", value, advice, facts)
    return Finding("OpenMP", "ok", f"{runtime}, shared with PyTorch", facts=facts)


def measure_arithmetic() -> Finding:
    """Floating operations per second when nothing but arithmetic is done."""
    from shorthaul.jit.peaks import measure_multiply_adds

    noise = listen_for_others()
    rates = measure_multiply_adds()
    return Finding(
        "multiply-add peak",
        "warning" if noise else "ok",
        f"{rates.one_thread / 1e9:.0f} GFLOP/s on one thread, "
        f"{rates.all_threads / 1e9:.0f} GFLOP/s on {rates.threads} (float32)",
        noise,
        {
            "one_thread_flops": rates.one_thread,
            "all_threads_flops": rates.all_threads,
            "threads": rates.threads,
        },
    )


def measure_memory_bandwidth() -> Finding:
    """Bytes per second to and from memory, beyond the caches."""
    from shorthaul.jit.peaks import choose_stream_bytes, measure_memory

    available_bytes = machine.read_available_bytes(_read(Path("/proc/meminfo")))
    cache_bytes = machine.read_last_level_cache_bytes()
    noise = listen_for_others()
    rates = measure_memory(choose_stream_bytes(cache_bytes, available_bytes))
    return Finding(
        "memory bandwidth",
        "warning" if noise else "ok",
        f"read {rates.read.all_threads / 1e9:.1f} GB/s, copy {rates.copy.all_threads / 1e9:.1f} "
        f"GB/s on {rates.read.threads} threads ({rates.read.one_thread / 1e9:.1f} and "
        f"{rates.copy.one_thread / 1e9:.1f} GB/s on one)",
        noise,
        {
            "read_one_thread_bytes_per_second": rates.read.one_thread,
            "read_all_threads_bytes_per_second": rates.read.all_threads,
            "copy_one_thread_bytes_per_second": rates.copy.one_thread,
            "copy_all_threads_bytes_per_second": rates.copy.all_threads,
            "stream_bytes": rates.stream_bytes,
            "threads": rates.read.threads,
        },
    )


def listen_for_others() -> str:
    """What makes a measurement made now doubtful: others that use the processors; empty if none."""
    before = _read(Path("/proc/stat"))
    time.sleep(LISTENING_SECONDS)
    return describe_others(machine.read_busy_share(before, _read(Path("/proc/stat"))))


def describe_others(busy_share: float) -> str:
    """A word of caution, when others take more than a tenth of the processors' time."""
    if busy_share <= 0.1:
        return ""
    return f"others use {busy_share:.0%} of the processors: measure again in a quiet minute"


def _read(path: Path) -> str:
    """The file's text, empty where the system has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
