"""The C allocator's settings: the same for every arm, and stated beside the figures.

They decide whether a large tensor is made of fresh pages, which the kernel must fill with zeros, or
of pages that were used before; that alone can be a factor of four. glibc reads them once, when the
process starts, so a benchmark that asks for others is started again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# Name -> environment. In `default`, glibc gives large blocks back to the system when they are freed
# and faults fresh pages in for the next. In `reuse` it keeps them, as a training loop with a caching
# allocator would.
ALLOCATORS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "reuse": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**46)},
}


def plan_environment(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with exactly the settings of the allocator called `name`."""
    if name not in ALLOCATORS:
        raise ValueError(f"expected an allocator among {', '.join(ALLOCATORS)}, got {name!r}")
    others = {key: value for key, value in environment.items() if not key.startswith("MALLOC_")}
    return others | dict(ALLOCATORS[name])


def require_allocator(name: str) -> None:
    """Go on with the allocator called `name`; start this process again when it has another.

    Children inherit it, so that arms in other environments have the same.
    """
    planned = plan_environment(name, os.environ)
    if planned != dict(os.environ):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], planned)


def describe_allocator(environment: Mapping[str, str] | None = None) -> str:
    """What allocates here, in words for the ledger."""
    environment = os.environ if environment is None else environment
    stated = [
        f"{key}={environment[key]}"
        for key in sorted(environment)
        if key.startswith("MALLOC_") or key == "LD_PRELOAD"
    ]
    return " ".join(["glibc", *stated]) if stated else "glibc, default settings"
