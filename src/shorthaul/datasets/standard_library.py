"""Where the source of the running Python's standard library lies, and which of it is data.

Files are found by listing directories and read as bytes; nothing is ever imported. Only what
belongs to the library by name (`sys.stdlib_module_names`) counts, so that site-packages, build
configuration and what a distribution drops beside the library do not change the data.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shorthaul.errors import DatasetError
from shorthaul.meter import record_move

# Left out because near-copies on both sides of a split would flatter a model: tests and
# demonstrations repeat each other, and `encodings`, `pydoc_data` and `lib2to3` are largely tables.
SKIPPED = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "encodings",
        "ensurepip",
        "idle_test",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)

# A stripped library may keep a few files; a whole one has more than 400.
MINIMUM_FILES = 100


@dataclass(frozen=True)
class LibraryFile:
    """One source file of the library, known from a directory listing; `name` is dotted."""

    name: str
    path: Path
    size_bytes: int
    modified_nanoseconds: int

    @property
    def is_package(self) -> bool:
        """Whether relative imports start at the module itself."""
        return self.path.name == "__init__.py"

    def read(self) -> bytes:
        """The file's bytes."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise DatasetError(
                f"a source file of the standard library cannot be read: {error}."
            ) from error
        record_move("disk", "memory", len(content), "library source")
        return content


def library_directory() -> Path:
    """The directory of the running Python's standard library, also in a virtual environment."""
    return Path(sysconfig.get_path("stdlib"))


def list_library(directory: Path) -> tuple[LibraryFile, ...]:
    """Every source file of the library under `directory` that is data, ordered by module name.

    Raises `DatasetError` where there is no source: a zipped library, or one stripped to bytecode.
    """
    files = []
    for path in _source_paths(directory):
        parts = path.relative_to(directory).with_suffix("").parts
        found = path.stat()
        files.append(
            LibraryFile(
                ".".join(parts[:-1] if parts[-1] == "__init__" else parts),
                path,
                found.st_size,
                found.st_mtime_ns,
            )
        )
    if len(files) < MINIMUM_FILES:
        raise DatasetError(
            f"expected the source of Python {platform.python_version()}'s standard library in "
            f"{directory}, but found {len(files)} of its .py files there, and at least "
            f"{MINIMUM_FILES} are needed: it is zipped, or stripped to bytecode.\n"
            "  Use a Python that comes with its source: the builds of python.org, conda, pyenv and\n"
            "  uv do; on Debian and Ubuntu, apt-get install libpython3-stdlib."
        )
    return tuple(sorted(files, key=lambda each: each.name))


def fingerprint(files: Iterable[LibraryFile]) -> str:
    """A digest of the listing: changes when a file is added, removed or written again."""
    digest = hashlib.sha256()
    for each in files:
        digest.update(f"{each.name} {each.size_bytes} {each.modified_nanoseconds}\n".encode())
    return digest.hexdigest()


def draw(name: str, purpose: str) -> float:
    """A number in [0, 1) that depends on `name` and `purpose` alone: the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=6, person=purpose.encode()).digest()
    return int.from_bytes(digest, "little") / 2**48


def choose_files(files: Sequence[LibraryFile], limit: int | None) -> tuple[LibraryFile, ...]:
    """`limit` of the files, drawn from all over the library; a smaller limit draws some of them."""
    if limit is None or limit >= len(files):
        return tuple(files)
    drawn = sorted(files, key=lambda each: draw(each.name, "limit"))[:limit]
    return tuple(sorted(drawn, key=lambda each: each.name))


def _source_paths(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        name = entry.name.removesuffix(".py")
        if name not in sys.stdlib_module_names or name in SKIPPED:
            continue
        for path in entry.rglob("*.py") if entry.is_dir() else [entry]:
            inside = path.relative_to(directory).parts
            if path.suffix == ".py" and path.is_file() and SKIPPED.isdisjoint(inside):
                yield path
