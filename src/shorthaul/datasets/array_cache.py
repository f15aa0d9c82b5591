"""Built arrays, kept on disk: the second call of a data set reads one file.

Entries are plain `.npz` files below `settings.cache_directory / "datasets"`, read without pickle
(an entry can be wrong, but it can never run code) and written beside their place, then renamed, so
that no reader sees half of one. A damaged or foreign entry is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shorthaul.fallbacks import note_fallback
from shorthaul.meter import record_move
from shorthaul.settings import settings
from shorthaul.whole_file import whole_file

Arrays = dict[str, npt.NDArray[Any]]

# What numpy and zipfile raise on a file that is cut short, has flipped bits (every member carries a
# checksum), holds pickled objects or is no archive at all.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError)


def cached_arrays(name: str, key: dict[str, object], build: Callable[[], Arrays]) -> Arrays:
    """The arrays that `build` makes, from the cache where an entry for `name` and `key` is whole.

    The running Python is part of the key, because the data comes from it.
    """
    python = f"{sys.implementation.name} {platform.python_version()}"
    description = json.dumps({"name": name, "python": python, **key}, sort_keys=True)
    path = entry_path(name, description)
    arrays = _read(path, description)
    if arrays is None:
        arrays = build()
        _write(path, description, arrays)
    return arrays


def entry_path(name: str, description: str) -> Path:
    """Where the entry of that description lies, whether it exists or not."""
    digest = hashlib.sha256(description.encode()).hexdigest()[:16]
    return settings.cache_directory / "datasets" / f"{name}-{digest}.npz"


def _read(path: Path, description: str) -> Arrays | None:
    try:
        # Opened here, because numpy leaves a file open when it is not the archive it expects.
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                return None
            arrays: Arrays = {name: np.asarray(archive[name]) for name in archive.files}
            size_bytes = os.fstat(file.fileno()).st_size
    except (OSError, *_DAMAGE):  # most often: not there yet
        return None
    if arrays.pop("description", np.empty(0)).tobytes() != description.encode():
        return None
    record_move("disk", "memory", size_bytes, "cached data set")
    return arrays


def _write(path: Path, description: str, arrays: Arrays) -> None:
    named: Any = {"description": np.frombuffer(description.encode(), dtype=np.uint8), **arrays}
    try:
        # Both levels for this user alone: kernels, which are code, lie next to the data sets.
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with whole_file(path) as file:
            np.savez(file, **named)
    except OSError as error:
        note_fallback("data set cache", "a new build in every process", str(error))
        return
    record_move("memory", "disk", path.stat().st_size, "cached data set")
