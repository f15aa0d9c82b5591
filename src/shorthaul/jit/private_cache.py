"""Where compiled code goes when the cache directory cannot be written: a directory of this process.

A home directory may be read-only, full, or over its quota. Work goes on there, with one more compile
per kernel and process, and the fallback is noted; what is in the cache already is used as before.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import tempfile
from pathlib import Path

from shorthaul.errors import CompileError
from shorthaul.fallbacks import note_fallback

_UNWRITABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOTDIR,
)
_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT))

_directory: Path | None = None


def why_unwritable(error: OSError | CompileError) -> str | None:
    """Why a directory cannot be written to, if that is what `error` tells; else `None`.

    A full disk may show as a compiler that fails, and says so.
    """
    if isinstance(error, CompileError):
        return next((said for said in _FULL if said in error.first_error), None)
    return error.strerror if error.errno in _UNWRITABLE else None


def private_directory(what: str, place: Path, reason: str) -> Path:
    """A directory for this process and those forked from it, removed at its end; noted."""
    global _directory
    note_fallback(
        f"{what} in {place}",
        "a private temporary directory, which is filled anew by each process",
        f"it cannot be written to ({reason}); SHORTHAUL_CACHE names another directory",
    )
    if _directory is None or not _directory.is_dir():
        _directory = Path(tempfile.mkdtemp(prefix="shorthaul-cache-"))
        atexit.register(_remove, _directory, os.getpid())
    return _directory


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child leaves it to its parent
        shutil.rmtree(directory, ignore_errors=True)
