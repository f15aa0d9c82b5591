"""What a figure was measured on: enough to judge it and to measure it again."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.ledger.allocator import describe_allocator
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
    }


def machine_key(machine: Mapping[str, object]) -> tuple[object, ...]:
    """What makes it the same machine in the ledger; software may change on it."""
    memory_gib = round(
        float(str(machine["memory_bytes"])) / 2**30
    )  # a kernel takes a little less or more
    # Processors of several generations bear one name. All runs from before vectors were noted were made
    # with AVX2, and none of those from before families were on the same as a later one.
    generation = machine.get("family", ""), machine.get("vectors", "avx2")
    return machine["cpu"], *generation, machine["cores"], memory_gib


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
