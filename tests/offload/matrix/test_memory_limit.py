"""A batch that cannot be trained within a limit on memory can be with offloading."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.offload.matrix.limited_memory import BUDGET_BYTES, SAVED_BYTES

ROOT = Path(__file__).parents[3]
GROUPS = Path("/sys/fs/cgroup")
# Python, torch and the tensors in use, without what is saved: measured at 370 MiB, with some room.
BASE_BYTES = 448 * 2**20
LIMIT_BYTES = BASE_BYTES + BUDGET_BYTES


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """The file that moves a process into a new control group with a limit on memory.

    Skips the test where the system does not let us make one.
    """
    is_first_version = (GROUPS / "memory").is_dir()
    parent = GROUPS / "memory" if is_first_version else GROUPS
    name = "memory.limit_in_bytes" if is_first_version else "memory.max"
    group = parent / f"shorthaul-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error}")
    try:
        try:
            (group / name).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"control groups here do not limit memory: {error}")
        yield group / "cgroup.procs"
    finally:
        for _ in range(100):  # a killed process leaves its group a moment later
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def run_limited(arm: str, directory: Path, processes: Path) -> subprocess.CompletedProcess[str]:
    """Train in a shell that first moves itself into the group."""
    command = 'echo $$ > "$0" && exec "$@"'
    module = [sys.executable, "-m", "tests.offload.matrix.limited_memory", arm, str(directory)]
    return subprocess.run(
        ["/bin/sh", "-c", command, str(processes), *module],
        cwd=ROOT,
        env={
            **os.environ,
            # Both arms give freed tensors back to the system at once. By default glibc keeps blocks
            # of up to 32 MiB, and cannot use the hole of an aligned one for another of its size.
            "MALLOC_MMAP_THRESHOLD_": str(2**20),
            "SHORTHAUL_STATE_DIRECTORY": str(directory / "state"),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_batch_trains_only_with_offloading(tmp_path):
    assert LIMIT_BYTES < SAVED_BYTES
    with memory_group(LIMIT_BYTES) as processes:
        offloaded = run_limited("offload", tmp_path, processes)
        kept = run_limited("keep", tmp_path, processes)
    assert offloaded.returncode == 0, offloaded.stderr
    assert kept.returncode == -signal.SIGKILL, kept.stderr
    plenty = LIMIT_BYTES + 2 * SAVED_BYTES
    with memory_group(plenty) as processes:  # it was the limit, and the result is the same
        kept = run_limited("keep", tmp_path, processes)
    assert kept.returncode == 0, kept.stderr
    assert kept.stdout == offloaded.stdout
