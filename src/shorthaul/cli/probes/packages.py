"""Probes of what is installed beside shorthaul, of its cache, and of second-best ways taken.

>>> parse_extras(["torch>=2.6", "blosc2>=3; extra == 'compress'", 'triton; extra == "gpu"'])
{'compress': ('blosc2',), 'gpu': ('triton',)}
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import stat
from collections.abc import Sequence
from importlib import metadata

from shorthaul.cli.findings import Finding
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.settings import settings
from shorthaul.units import format_bytes

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+).*?extra == ['\"]([^'\"]+)['\"]")


def look_for_gpu() -> Finding:
    """A GPU that torch can use."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
        return Finding("GPU", "ok", ", ".join(names), facts={"devices": names})
    if torch.version.cuda is None:
        return Finding(
            "GPU",
            "missing",
            "none can be used: this torch is a CPU build",
            "with an NVIDIA GPU, install a CUDA build of torch; all of shorthaul runs without one",
        )
    return Finding("GPU", "missing", "torch finds none", "all of shorthaul runs without one")


def look_for_triton() -> Finding:
    """Triton, which writes the GPU kernels."""
    if importlib.util.find_spec("triton") is None:
        return Finding(
            "Triton", "missing", "not installed; only GPUs need it", "pip install 'shorthaul[gpu]'"
        )
    from shorthaul.jit.launching.triton_at_hand import why_no_triton  # it needs torch

    version, reason = metadata.version("triton"), why_no_triton()
    if reason is not None:
        remedy = "install gcc and Python's headers, or set CC; GPUs compute by PyTorch until then"
        return Finding("Triton", "missing", f"{version}: {reason}", remedy)
    return Finding("Triton", "ok", version, facts={"version": version})


def look_for_extras() -> tuple[Finding, ...]:
    """Every extra of shorthaul: what it brings, or how to get it."""
    return tuple(
        describe_extra(extra, {name: find_version(name) for name in names})
        for extra, names in parse_extras(metadata.requires("shorthaul") or []).items()
    )


def describe_extra(extra: str, versions: dict[str, str | None]) -> Finding:
    """An extra as a finding, from the versions of its packages; `None` is not installed."""
    name = f"shorthaul[{extra}]"  # what pip calls it
    facts = {"packages": versions}
    absent = [package for package, version in versions.items() if version is None]
    if absent:
        value = f"{', '.join(absent)} not installed"
        return Finding(name, "missing", value, f"pip install '{name}'", facts)
    value = ", ".join(f"{package} {version}" for package, version in versions.items())
    return Finding(name, "ok", value, facts=facts)


def parse_extras(requirements: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The packages of each extra, from requirements as the installed metadata writes them.

    An extra that stands for other extras (`shorthaul[report,digits]`) is left to those.
    """
    extras: dict[str, tuple[str, ...]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match and match[1] != "shorthaul":
            extras[match[2]] = (*extras.get(match[2], ()), match[1])
    return extras


def look_at_cache() -> Finding:
    """The directory of compiled kernels: whose it is, and how full."""
    from shorthaul.jit import KernelCache
    from shorthaul.jit.autotune import remembered_choices

    directory = settings.cache_directory
    cache = KernelCache()
    entries = cache.entries()  # refuses a directory that others may write to
    if not directory.is_dir():
        return Finding("cache", "ok", f"{directory}, not made yet")
    found = directory.stat()
    size_bytes = sum(each.size_bytes for each in entries)
    choices = len(remembered_choices())
    facts = {
        "directory": str(directory),
        "owner": _user_name(found.st_uid),
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "kernels": len(entries),
        "kernel_bytes": size_bytes,
        "limit_bytes": cache.limit_bytes,
        "tuning_choices": choices,
    }
    value = (
        f"{directory} of {facts['owner']}: {len(entries)} kernels, {format_bytes(size_bytes)} of "
        f"{format_bytes(cache.limit_bytes)}; {choices} tuning choices"
    )
    if not os.access(directory, os.W_OK | os.X_OK):
        return Finding(
            "cache",
            "warning",
            f"{value}; it cannot be written to",
            "point SHORTHAUL_CACHE at a directory of yours",
            facts,
        )
    return Finding("cache", "ok", value, facts=facts)


def list_fallbacks() -> tuple[Finding, ...]:
    """Every second-best way that was taken while the probes before this one ran."""
    return tuple(
        Finding(each.what, "warning", f"uses {each.instead}: {each.reason}")
        for each in taken_fallbacks()
    )


def find_version(package: str) -> str | None:
    """The version of an installed package, without importing it; `None` if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # a container's user may have a number and no name
        return f"user {user}"
