"""Programs run on kernels that were compiled with a sanitizer, in a process of their own.

A sanitizer must be in a process before everything that it looks at, so it is preloaded, and the same
texts are compiled with it: `CXX` may carry arguments, and they are part of a kernel's digest, so that
neither build is taken for the other.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What each of them must be preloaded with, and what it is told.
LIBRARIES = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {
    # Python leaks by design, and its modules have symbols in common.
    "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # Python and PyTorch were not compiled with it: their own locks are not seen.
    "TSAN_OPTIONS": "report_signal_unsafe=0:halt_on_error=1:ignore_noninstrumented_modules=1",
    # Every tensor's memory has its own guarded block, whatever its size.
    "PYTHONMALLOC": "malloc",
}


def run_sanitized(
    sanitizers: str, module: str, *arguments: str, cache: Path
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` on kernels with `sanitizers`, compiled into `cache`."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    if sanitizers == "thread":
        setarch = shutil.which("setarch") or pytest.skip("there is no setarch")
        command = [setarch, "-R", *command]  # its shadow memory needs addresses where they were
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=3000,
        cwd=ROOT,
        env=os.environ
        | OPTIONS
        | {
            "CXX": f"g++ -fsanitize={sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1",
            "LD_PRELOAD": " ".join(map(_find_library, LIBRARIES[sanitizers])),
            "SHORTHAUL_CACHE": str(cache),
            "SHORTHAUL_KERNELS": "generated",
            "SHORTHAUL_AUTOTUNE": "off",
            "PYTHONPATH": os.pathsep.join(("src", ".", os.environ.get("PYTHONPATH", ""))),
        },
        check=False,
    )


def _find_library(name: str) -> str:
    """The compiler's own copy; the test is skipped where it has none."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"g++ has no {name}")
    return found


def require_clean(done: subprocess.CompletedProcess[str]) -> None:
    """Fail with what the sanitizer said."""
    report = "\n".join(done.stderr.splitlines()[:60])
    assert done.returncode == 0, f"status {done.returncode}\n{report}"
    for word in ("runtime error", "AddressSanitizer", "ThreadSanitizer"):
        assert word not in done.stderr, report
    assert done.stdout.splitlines()[-1] == "finished", done.stdout
