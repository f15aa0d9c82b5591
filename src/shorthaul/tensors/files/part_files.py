"""Files that are being written: under a name of their own, and swept if their writer was killed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
from pathlib import Path

from shorthaul.storage import StorageFile, open_file


def open_part(path: Path) -> tuple[StorageFile, Path]:
    """A new file beside `path`, locked as long as it is open: so others see that it is written."""
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = open_file(part, "write")
        try:
            fcntl.flock(file.buffered_descriptor, fcntl.LOCK_EX)
            if part.stat().st_ino == os.fstat(file.buffered_descriptor).st_ino:
                return file, part
        except FileNotFoundError:
            pass  # swept between being opened and being locked
        except OSError:
            return file, part  # a file system without locks, on which nothing is swept either
        file.close()


def sweep_parts(path: Path) -> None:
    """Remove what earlier writers of `path` left when they were killed: nobody holds a lock on it."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.????????.part"):
        with contextlib.suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def sync_directory(directory: Path) -> None:
    """Have the names of files in a directory on the disk, too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems cannot; the file's own bytes are safe
        pass
    finally:
        os.close(descriptor)
