"""The allocator's settings reach the process, whatever it was started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ledger.allocator import ALLOCATORS, describe_allocator, plan_environment

ROOT = Path(__file__).parents[3]


def test_the_environment_has_exactly_the_settings_of_the_allocator() -> None:
    environment = {"HOME": "/home/ada", "MALLOC_ARENA_MAX": "1"}
    assert plan_environment("default", environment) == {"HOME": "/home/ada"}
    assert plan_environment("reuse", environment) == {
        "HOME": "/home/ada",
        **ALLOCATORS["reuse"],
    }


def test_an_unknown_allocator_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an allocator among default, reuse, got 'fast'"):
        plan_environment("fast", {})


def test_settings_are_described() -> None:
    assert describe_allocator({"HOME": "/home/ada"}) == "glibc, default settings"
    assert describe_allocator({"MALLOC_MMAP_MAX_": "0", "LD_PRELOAD": "libjemalloc.so"}) == (
        "glibc LD_PRELOAD=libjemalloc.so MALLOC_MMAP_MAX_=0"
    )


SCRIPT = """
import ctypes, os, resource, sys
from benchmarks.ledger.allocator import describe_allocator, require_allocator

require_allocator(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def use():
    address = libc.malloc(64 * 2**20)
    ctypes.memset(address, 1, 64 * 2**20)
    libc.free(address)

use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(os.getpid(), faults, sys.argv[2], describe_allocator())
"""


def _run(allocator: str, **environment: str) -> tuple[bool, int, str, str]:
    """Whether the script was started again, its page faults, its argument, what it described."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, allocator, "an argument"],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    printed = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    number, faults, rest = printed.split(" ", 2)
    assert int(number) == process.pid, "started again in place: the same process"
    words = rest.split()
    return True, int(faults), " ".join(words[:2]), " ".join(words[2:])


def test_memory_is_used_again_only_where_that_was_asked_for() -> None:
    _, default_faults, argument, described = _run("default", MALLOC_MMAP_MAX_="0")
    assert (argument, described) == ("an argument", "glibc, default settings")
    _, reuse_faults, argument, described = _run("reuse")
    assert argument == "an argument"
    assert described == "glibc MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=70368744177664"
    # Four times 64 MiB: with huge pages still one fault per 2 MiB.
    assert default_faults >= 4 * 32
    assert reuse_faults < 32
