"""How much memory this process may use, and uses: the machine's, or less where a group limits it.

>>> usable_bytes() > 2**20
True
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_LARGE_BLOCK_BYTES = 2**20
# Each of them decides what glibc keeps, and ends its own adaptation.
_ALLOCATOR_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
_releases: list[Callable[[], None]] = []


def usable_bytes(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int:
    """The smallest of the machine's memory and the limits of the groups that the process is in."""
    physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical_bytes, *_read_limits(groups, mount)])


def resident_bytes() -> int:
    """What of this process lies in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def when_giving_back(release: Callable[[], None]) -> None:
    """Have `release` called whenever memory is given back: it returns what another allocator keeps."""
    _releases.append(release)


def give_memory_back() -> None:
    """Return to the system what allocators keep though nobody uses it, where they can."""
    for release in _releases:
        release()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def has_own_allocator() -> bool:
    """Whether the user has tuned the C library's allocator, or put another in its place."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    return "malloc" in preloaded or any(name in os.environ for name in _ALLOCATOR_VARIABLES)


def return_large_blocks() -> bool:
    """Have blocks of at least 1 MiB go back to the system when they are freed, from now on.

    By itself, glibc raises the size from which it does so to that of the largest block that was freed,
    and keeps what is smaller: memory that training freed then stays resident. Returns whether the C
    library took it.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES))
    except (OSError, AttributeError):
        return False


def _read_limits(groups: Path, mount: Path) -> Iterator[int]:
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2: one tree for all
            root, name = mount, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):  # a group has what those around it leave
            with contextlib.suppress(OSError, ValueError):  # "max" is no limit
                yield int((root / each / name).read_text())
