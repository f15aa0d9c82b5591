"""What was written so far of parts that are being written, so that a second run goes on from there.

Nothing is removed but files that a journal or a description of parts lists: a run writes down a file's name before
it writes the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from shorthaul.distributed.partition.manifest import JOURNAL, MANIFEST, WORK, Manifest, sum_file
from shorthaul.errors import PartFileError, PartitionError
from shorthaul.tensors import save_features
from shorthaul.whole_file import whole_file

_LOCK = ".lock"
_LONGEST_NAME_BYTES = 255  # of file systems


class Journal:
    """The finished files of one run, by what was asked; unfinished ones of another run are removed first."""

    def __init__(
        self, folder: Path, asked: str, tell: Callable[[str], None], *, start_over: bool = False
    ) -> None:
        self.folder, self.asked, self.tell = folder, asked, tell
        self.files: dict[str, tuple[int, int]] = {}
        self.resumed_files = 0
        self._saved: set[str] = set()  # names of the files of this run
        self._begun: set[str] = set()  # names of all files that are there or may be there, half
        begun, whole = _read(folder / JOURNAL), _read(folder / MANIFEST)
        found = begun or whole
        if whole and not begun and not start_over and whole.get("asked") != asked:
            raise PartitionError(
                f"{folder} holds whole parts that were cut otherwise, or of something else.\n"
                "  Give another folder, or start_over=True (--start-over) to have them removed."
            )
        self._begun = _list_files(begun) | _list_files(whole)
        is_same = found.get("asked") == asked and not start_over
        if is_same:
            self.files = _list_whole(found)
        self._write()
        (folder / MANIFEST).unlink(missing_ok=True)
        if not is_same:
            _remove(folder, self._begun)
            self._begun.clear()
            self._write()

    def save(self, name: str, rows: int, make: Callable[[], Iterable[torch.Tensor]]) -> Path:
        """Write a table, unless this file is there from an earlier run and is whole."""
        path = self.folder / name
        self._saved.add(name)
        if name in self.files and is_whole(path, *self.files[name]):
            self.resumed_files += 1
            return path
        if path.exists() and name not in self._begun:
            raise PartitionError(
                f"{path} is where a file of the parts belongs, and is none of them.\n"
                "  Move it, or give another folder."
            )
        self.tell(f"writing {name}")
        self._begun.add(name)
        self._write()
        path.parent.mkdir(parents=True, exist_ok=True)
        save_features(path, make(), rows=rows)
        self.files[name] = path.stat().st_size, sum_file(path)
        self._write()
        return path

    def finish(self, manifest: Manifest) -> None:
        """Make the folder whole, and forget how it came to be."""
        _remove(self.folder, self._begun - manifest.files.keys())
        manifest.write(self.folder, self.asked)
        (self.folder / JOURNAL).unlink()

    def lasting_files(self) -> dict[str, tuple[int, int]]:
        """All that a reader needs."""
        lasting = {name for name in self._saved if not name.startswith(WORK)}
        return {name: each for name, each in self.files.items() if name in lasting}

    def _write(self) -> None:
        facts = {"asked": self.asked, "files": self.files, "begun": sorted(self._begun)}
        with whole_file(self.folder / JOURNAL) as file:
            file.write(json.dumps(facts).encode())


def find_finished(folder: Path, asked: str) -> Manifest | None:
    """The parts in `folder` if they are whole and what is asked for; None otherwise."""
    if (folder / JOURNAL).exists() or _read(folder / MANIFEST).get("asked") != asked:
        return None
    try:
        manifest = Manifest.read(folder)
    except PartFileError:
        return None
    are_whole = all(is_whole(folder / name, *each) for name, each in manifest.files.items())
    return manifest if are_whole else None


def is_whole(path: Path, size_bytes: int, checksum: int) -> bool:
    """Whether a file is there as it was written."""
    try:
        return path.stat().st_size == size_bytes and sum_file(path) == checksum
    except (OSError, PartFileError):
        return False


def require_own(folder: Path) -> None:
    """Raise unless `folder` is empty, or holds parts, whole or not."""
    if not folder.exists() or _read(folder / JOURNAL) or _read(folder / MANIFEST):
        return
    names = sorted(each.name for each in folder.iterdir() if each.name != _LOCK)
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if names[3:] else "")
        raise PartitionError(
            f"{folder} is for parts alone, and holds something else: {shown}.\n"
            "  Give an empty folder, or one that does not exist."
        )


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold `folder` while it is written; another run that writes there too is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / _LOCK, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PartitionError(f"{folder} is being written by another process.") from error
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    is_journal = (
        isinstance(found, dict)
        and isinstance(found.get("files", {}), dict)
        and isinstance(found.get("begun", []), list)
    )
    return dict(found) if is_journal else {}


def _list_whole(described: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """The finished files of a journal or a description of parts, with their sizes and checksums."""
    return {
        name: (each[0], each[1])
        for name, each in described.get("files", {}).items()
        if _is_of_parts(name)
        and isinstance(each, list)
        and [type(number) for number in each] == [int, int]
    }


def _list_files(described: dict[str, Any]) -> set[str]:
    """The files that a journal or a description of parts calls its own."""
    return set(filter(_is_of_parts, (*described.get("files", {}), *described.get("begun", ()))))


def _is_of_parts(name: Any) -> bool:
    """Whether a file of parts may be called so: it lies in a folder of the parts' folder, no higher and no deeper."""
    try:
        words = os.fsencode(name).split(b"/") if isinstance(name, str) else []
    except UnicodeEncodeError:
        return False
    return len(words) == 2 and all(
        each not in (b"", b".", b"..") and b"\0" not in each and len(each) <= _LONGEST_NAME_BYTES
        for each in words
    )


def _remove(folder: Path, names: set[str]) -> None:
    """Remove files, and the folders between that are empty then."""
    for each in names:
        with contextlib.suppress(IsADirectoryError, NotADirectoryError):  # no file of parts
            (folder / each).unlink(missing_ok=True)
    between = {parent for each in names for parent in Path(each).parents} - {Path()}
    for parent in sorted(between, key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):  # something else lies there
            (folder / parent).rmdir()
