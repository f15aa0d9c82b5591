"""Probes of the scratch directory, and of the ways to read and write it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from shorthaul.cli.findings import Finding
from shorthaul.cli.probes import machine
from shorthaul.errors import EngineUnavailableError
from shorthaul.settings import settings
from shorthaul.units import format_bytes

if TYPE_CHECKING:  # it needs torch
    from shorthaul.cli.trials.disk import RoundTrip

IN_MEMORY = ("tmpfs", "ramfs")
OVER_THE_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs")

_TRIAL_BYTES = 2**20 + 123  # a direct body and an unaligned tail
_MOVE = "point SHORTHAUL_SCRATCH at a directory on a local disk"


def look_at_scratch() -> Finding:
    """The directory where spools go: its file system and its free space."""
    directory = settings.scratch_directory
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        what = "cannot be written to" if directory.exists() else "does not exist"
        advice = "make it, or point SHORTHAUL_SCRATCH at another directory"
        return Finding("scratch directory", "broken", f"{directory} {what}", advice)
    mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
    mount = machine.find_mount(mountinfo, directory.resolve())
    return describe_scratch(directory, mount, shutil.disk_usage(directory).free)


def describe_scratch(directory: Path, mount: machine.Mount | None, free_bytes: int) -> Finding:
    """The scratch directory as a finding, from what is known about it."""
    kind = mount.kind if mount else "an unknown file system"
    value = f"{directory} on {kind}, {format_bytes(free_bytes)} free"
    facts = {"directory": str(directory), "file_system": kind, "free_bytes": free_bytes}
    if kind in IN_MEMORY:
        value += ": what is offloaded there stays in memory"
        return Finding("scratch directory", "warning", value, _MOVE, facts)
    if kind in OVER_THE_NETWORK:
        value += ": what is offloaded there goes over the network"
        return Finding("scratch directory", "warning", value, _MOVE, facts)
    return Finding("scratch directory", "ok", value, facts=facts)


def try_storage() -> Finding:
    """Write to the scratch directory, read it back, compare."""
    from shorthaul.cli.trials.disk import make_round_trip
    from shorthaul.storage import open_engine, open_file

    with open_engine() as engine, open_file(settings.scratch_directory, "scratch") as file:
        return describe_trial(engine.name, make_round_trip(engine, file, _TRIAL_BYTES))


def describe_trial(engine: str, trip: RoundTrip) -> Finding:
    """A round trip as a finding."""
    facts = {"engine": engine, "bytes": trip.bytes}
    if not trip.is_equal:
        value = f"the {engine} engine read back other bytes than it wrote"
        return Finding("storage engine", "broken", value, "do not trust this disk", facts)
    value = f"{engine}: {trip.bytes:,} bytes written and read back equal"
    return Finding("storage engine", "ok", value, facts=facts)


def look_for_uring() -> Finding:
    """Whether io_uring, the fastest engine, works here."""
    from shorthaul.storage import open_engine

    try:
        open_engine("uring").close()
    except EngineUnavailableError as error:
        advice = "threads are used instead; containers often forbid io_uring"
        return Finding("io_uring", "warning", error.reason, advice)
    return Finding("io_uring", "ok", "works")


def look_for_direct() -> Finding:
    """Whether files in the scratch directory can be read past the page cache."""
    from shorthaul.storage import open_file

    with open_file(settings.scratch_directory, "scratch") as file:
        facts = {"is_direct": file.is_direct, "alignment_bytes": file.alignment_bytes}
        if file.is_direct:
            value = f"works, aligned to {file.alignment_bytes} bytes"
            return Finding("O_DIRECT", "ok", value, facts=facts)
        advice = (
            "buffered requests are used; they copy every byte once more and fill the page cache"
        )
        return Finding("O_DIRECT", "warning", file.buffered_reason or "not used", advice, facts)


def measure_scratch() -> Finding:
    """Bytes per second to and from the scratch directory."""
    from shorthaul.cli.trials.disk import choose_file_bytes, measure_disk

    directory = settings.scratch_directory
    file_bytes = choose_file_bytes(shutil.disk_usage(directory).free)
    if file_bytes == 0:
        return Finding("disk bandwidth", "warning", f"{directory} is too full to measure", _MOVE)
    rates = measure_disk(directory, file_bytes)
    way = "direct" if rates.is_direct else "through the page cache"
    return Finding(
        "disk bandwidth",
        "ok",
        f"write {rates.write_bytes_per_second / 1e9:.2f} GB/s, read "
        f"{rates.read_bytes_per_second / 1e9:.2f} GB/s, {rates.random_reads_per_second:,.0f} random "
        f"4 KiB reads/s ({rates.engine}, {way})",
        facts={
            "engine": rates.engine,
            "is_direct": rates.is_direct,
            "file_bytes": rates.file_bytes,
            "write_bytes_per_second": rates.write_bytes_per_second,
            "read_bytes_per_second": rates.read_bytes_per_second,
            "random_4096_byte_reads_per_second": rates.random_reads_per_second,
        },
    )
