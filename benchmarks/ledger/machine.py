"""What a figure was measured on: enough to judge it and to measure it again."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.ledger.allocator import describe_allocator
from shorthaul.cli.probes.gpu.devices import find_driver
from shorthaul.conv.problem.machine import this_machine
from shorthaul.errors import NoCompilerError
from shorthaul.jit.toolchain import find_toolchain, read_processor

Machine = dict[str, str | int | float]


def describe_machine() -> Machine:
    """The machine and the software of this process, as plain values."""
    return {
        "cpu": read_processor().model,
        "family": find_family(_read("/proc/cpuinfo")),
        "vectors": this_machine().name,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": (re.match(r"\d+(\.\d+)*", platform.release()) or [platform.release()])[0],
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "compiler": _describe_compiler(),
        "allocator": describe_allocator(),
        "load_before": round(os.getloadavg()[0], 2),
        **describe_gpu(),
    }


def describe_gpu() -> Machine:
    """The current CUDA device and its software; nothing where there is none."""
    if not torch.cuda.is_available():
        return {}
    known = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": known.name,
        "gpu_capability": f"{known.major}.{known.minor}",
        "gpu_memory_bytes": known.total_memory,
        "gpus": torch.cuda.device_count(),
        "gpu_driver": find_driver() or "unknown",
        "cuda": torch.version.cuda or "none",
        "cudnn": str(torch.backends.cudnn.version()),
        "triton": find_version("triton"),
    }


def find_version(package: str) -> str:
    """The version of an installed package, or `none`."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "none"


def machine_key(machine: Mapping[str, object]) -> tuple[object, ...]:
    """What makes it the same machine in the ledger; software may change on it."""
    memory_gib = round(
        float(str(machine["memory_bytes"])) / 2**30
    )  # a kernel takes a little less or more
    # Processors of several generations bear one name. All runs from before vectors were noted were made
    # with AVX2, and none of those from before families were on the same as a later one.
    generation = machine.get("family", ""), machine.get("vectors", "avx2")
    return machine["cpu"], *generation, machine["cores"], memory_gib, machine.get("gpu", "")


def find_family(processors: str) -> str:
    """The generation of a processor, from what Linux says about it.

    >>> find_family("cpu family\\t: 26\\nmodel\\t\\t: 2\\nmodel name\\t: AMD EPYC\\n")
    'family 26 model 2'
    """
    found = {
        name: re.search(rf"^{name}\s*: (\d+)$", processors, re.MULTILINE)
        for name in ("cpu family", "model")
    }
    return " ".join(f"{name.split()[-1]} {each[1]}" for name, each in found.items() if each)


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return "unknown"


def _chosen(choices: str) -> str:
    """The one in brackets of `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", choices)
    return found[1] if found else choices


def _describe_compiler() -> str:
    try:
        return find_toolchain().version
    except NoCompilerError:
        return "none"
