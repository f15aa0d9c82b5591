"""File systems that are soon full, in memory, where mounting is allowed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(mount: Path, size: str) -> Iterator[Path]:
    """A file system of `size` at `mount`; skips the test where it may not be made."""
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("may not mount a small file system here")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def enlarge(mount: Path, size: str) -> None:
    """Make room in it."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(mount)], check=True)
