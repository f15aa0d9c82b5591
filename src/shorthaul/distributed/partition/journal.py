"""What was written so far of parts that are being written, so that a second run goes on from there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from shorthaul.distributed.partition.manifest import JOURNAL, MANIFEST, Manifest, sum_file
from shorthaul.errors import PartFileError, PartitionError
from shorthaul.tensors import save_features
from shorthaul.whole_file import whole_file

_FOLDERS = ("topology", "originals", "seeds", "hot", "work")


class Journal:
    """The finished files of one run, by what was asked; files of another run are removed first."""

    def __init__(self, folder: Path, asked: str, tell: Callable[[str], None]) -> None:
        self.folder, self.asked, self.tell = folder, asked, tell
        self.files: dict[str, tuple[int, int]] = {}
        self.resumed_files = 0
        found = _read(folder / JOURNAL)
        if found.get("asked") == asked:
            self.files = {name: tuple(each) for name, each in found.get("files", {}).items()}
        else:
            _clear(folder)
        self._write()

    def save(self, name: str, rows: int, make: Callable[[], Iterable[torch.Tensor]]) -> Path:
        """Write a table, unless this file is there from an earlier run and is whole."""
        path = self.folder / name
        if name in self.files and self._is_whole(path, *self.files[name]):
            self.resumed_files += 1
            return path
        self.tell(f"writing {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        save_features(path, make(), rows=rows)
        self.files[name] = path.stat().st_size, sum_file(path)
        self._write()
        return path

    def finish(self, manifest: Manifest) -> None:
        """Make the folder whole, and forget how it came to be."""
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        manifest.write(self.folder)
        (self.folder / JOURNAL).unlink()

    def lasting_files(self) -> dict[str, tuple[int, int]]:
        """All that a reader needs."""
        return {name: each for name, each in self.files.items() if not name.startswith("work/")}

    def _is_whole(self, path: Path, size_bytes: int, checksum: int) -> bool:
        try:
            return path.stat().st_size == size_bytes and sum_file(path) == checksum
        except (OSError, PartFileError):
            return False

    def _write(self) -> None:
        with whole_file(self.folder / JOURNAL) as file:
            file.write(json.dumps({"asked": self.asked, "files": self.files}).encode())


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold `folder` while it is written; another run that writes there too is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PartitionError(f"{folder} is being written by another process.") from error
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _clear(folder: Path) -> None:
    """Remove parts, whole or not, and nothing else that may lie there."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for each in (*_FOLDERS, *(found.name for found in folder.glob("part-*"))):
        shutil.rmtree(folder / each, ignore_errors=True)
