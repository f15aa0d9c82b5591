"""Reading what Linux tells about the machine. Each reader takes the text or the directory it reads.

>>> read_processor_limit("150000 100000", usable=8)
1.5
>>> find_openmp_libraries("7f00-7f01 r-xp 0 08:01 12 /usr/lib/libgomp.so.1.0.0")
('/usr/lib/libgomp.so.1.0.0',)
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from shorthaul.units import parse_bytes

# What makes a difference to shorthaul's kernels, of the hundred words in /proc/cpuinfo.
NOTABLE_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "sve", "sve2", "bf16", "i8mm"),
)

_OPENMP_LIBRARY = re.compile(r"/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so[^/\s]*")
_MOUNT_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """The file system that holds a path."""

    point: Path
    kind: str  # ext4, xfs, tmpfs, ...
    source: str


def choose_notable_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a processor's features that its kernels make use of."""
    return tuple(each for each in NOTABLE_FEATURES if each in features)


def find_openmp_libraries(maps: str) -> tuple[str, ...]:
    """The OpenMP runtimes in the text of /proc/self/maps, each once."""
    return tuple(sorted(set(_OPENMP_LIBRARY.findall(maps))))


def read_processor_limit(cpu_max: str, usable: int) -> float:
    """How many processors may be kept busy: `usable`, or less where a container sets a quota.

    `cpu_max` is the control group's file of that name, "<microseconds or max> <period>".
    """
    quota, _, period = cpu_max.strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return float(usable)
    return min(float(usable), int(quota) / int(period))


def read_busy_share(before: str, after: str) -> float:
    """The share of all processors' time that was used between two texts of /proc/stat.

    What a hypervisor gave to others ("steal") counts as used. 0 if the texts do not tell.
    """
    first, second = _read_ticks(before), _read_ticks(after)
    passed = [later - earlier for earlier, later in zip(first, second, strict=False)][:8]
    if len(passed) < 5 or sum(passed) <= 0:
        return 0.0
    idle = passed[3] + passed[4]  # the fourth column is idle time, the fifth is waiting for disks
    return min(1.0, max(0.0, 1 - idle / sum(passed)))


def _read_ticks(text: str) -> list[int]:
    match = re.search(r"^cpu +([0-9 ]+)$", text, re.MULTILINE)
    return [int(each) for each in match[1].split()] if match else []


def read_available_bytes(meminfo: str) -> int:
    """Memory that can be had without swapping, from the text of /proc/meminfo; 0 if not told."""
    match = re.search(r"^MemAvailable:\s+([0-9]+) kB$", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def read_last_level_cache_bytes(directory: Path = Path("/sys/devices/system/cpu")) -> int:
    """The last-level caches of all processors together; 0 if the system does not tell."""
    size_of: dict[tuple[int, str], int] = {}  # by level and by who shares it
    for index in directory.glob("cpu[0-9]*/cache/index[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            level = int((index / "level").read_text())
            sharers = (index / "shared_cpu_list").read_text().strip()
            size = (index / "size").read_text().strip()  # "32768K", "32M"
            size_of[level, sharers] = parse_bytes(f"{size}iB" if size[-1:].isalpha() else size)
    last = max((level for level, _ in size_of), default=0)
    return sum(size for (level, _), size in size_of.items() if level == last)


def find_mount(mountinfo: str, path: Path) -> Mount | None:
    """The mount that holds `path` (absolute, links resolved), from /proc/self/mountinfo."""
    found: Mount | None = None
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(kinds) < 2:
            continue
        point = Path(_unescape(fields[4]))
        is_deeper = found is None or len(point.parts) >= len(found.point.parts)
        if path.is_relative_to(point) and is_deeper:  # of equals the later: it covers the earlier
            found = Mount(point, kinds[0], _unescape(kinds[1]))
    return found


def _unescape(text: str) -> str:
    """Mount points with spaces are written `\\040` and the like, byte by byte."""
    return _MOUNT_ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
