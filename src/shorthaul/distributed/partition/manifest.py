"""What a folder of parts says about itself: written last, so that a folder without it is not whole.

::

    parts/parts.json                       everything below, with sizes and checksums
    parts/topology/pointers.npy, ..        incoming edges of all nodes, under the parts' ids
    parts/originals/paper.npy              for each id of the parts, the graph's
    parts/seeds/paper.npy                  what is trained on, under the parts' ids
    parts/part-0/paper.features.npy, ..    the rows of the nodes that part 0 owns
    parts/topology-0/paper.sources.npy, .. instead of topology: the same of the nodes that part 0 owns
    parts/hot/paper.ids.npy, paper.features.npy    rows that every rank keeps
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.errors import PartFileError
from shorthaul.whole_file import whole_file

FORMAT = 1
COLUMNS = ("pointers", "sources", "relations", "edges")  # of incoming edges, by target
MANIFEST = "parts.json"
JOURNAL = "unfinished.json"
WORK = "work/"
_SUMMED_BYTES = 2**24
_AGAIN = (
    "Run `shorthaul partition` again: it goes on where it stopped, or copy the whole folder anew"
)


@dataclass(frozen=True)
class TableFacts:
    """One table of rows, cut by the owners of its nodes."""

    dtype: str
    row_shape: tuple[int, ...]
    suffix: str


@dataclass(frozen=True)
class Manifest:
    """The description of a folder of parts."""

    method: str
    offsets: Mapping[str, tuple[int, ...]]
    relations: tuple[tuple[str, str, str], ...]
    dtype: str
    num_edges: int
    tables: Mapping[str, Mapping[str, TableFacts]]  # by node type, then by name
    seeds: tuple[str, ...]  # node types that have some
    hot: Mapping[str, int]  # rows of each type that every rank keeps
    report: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # path -> bytes, checksum

    @property
    def book(self) -> PartitionBook:
        """Who owns what."""
        return PartitionBook(dict(self.offsets))

    @property
    def is_split(self) -> bool:
        """Whether no folder has the whole topology, but each part the rows of its own nodes."""
        return topology_file("pointers") not in self.files

    @property
    def topology_bytes(self) -> int:
        """Of all incoming edges, as ranks map them to draw neighbors."""
        return sum(self.files[topology_file(each)][0] for each in COLUMNS)

    @property
    def version(self) -> str:
        """Short words for the content of all files: equal where all ranks opened the same parts."""
        described = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    @property
    def numbering(self) -> str:
        """Short words for which node has which number, and in which part: what checkpoints depend on."""
        originals = [self.files.get(originals_file(each)) for each in self.offsets]
        described = json.dumps([dict(self.offsets), originals], sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    def write(self, folder: Path, asked: str) -> None:
        """Make the folder whole; `asked` tells a later run whether it would write the same."""
        head = {"format": FORMAT, "version": self.version, "asked": asked}
        text = json.dumps({**head, **asdict(self)}, indent=1)
        with whole_file(folder / MANIFEST) as file:
            file.write(text.encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The description in `folder`; `PartFileError` where it is not whole."""
        path = folder / MANIFEST
        if not path.exists():
            is_begun = (folder / JOURNAL).exists()
            problem = (
                "partitioning was begun here and did not end"
                if is_begun
                else "there are no parts here"
            )
            raise PartFileError(path, problem, _AGAIN + ".")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            expected, told = found.pop("format"), found.pop("version")
            found.pop("asked", None)
            if expected != FORMAT:
                raise PartFileError(
                    path, f"expected format {FORMAT}, got {expected!r}", "Cut the graph again."
                )
            manifest = cls(
                **{
                    **found,
                    "offsets": {name: tuple(each) for name, each in found["offsets"].items()},
                    "relations": tuple(tuple(each) for each in found["relations"]),
                    "seeds": tuple(found["seeds"]),
                    "tables": {
                        kind: {
                            name: TableFacts(
                                each["dtype"], tuple(each["row_shape"]), each["suffix"]
                            )
                            for name, each in tables.items()
                        }
                        for kind, tables in found["tables"].items()
                    },
                    "files": {name: tuple(each) for name, each in found["files"].items()},
                }
            )
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OSError,
            RecursionError,
        ) as error:
            if isinstance(error, PartFileError):
                raise
            raise PartFileError(path, f"it cannot be read ({error})", _AGAIN + ".") from error
        if manifest.version != told:
            raise PartFileError(path, "it was changed after it was written", _AGAIN + ".")
        return manifest

    def require_files(self, folder: Path, is_wanted: Callable[[str], bool]) -> None:
        """Raise unless the wanted files are there with their sizes."""
        for name, (size_bytes, _) in self.files.items():
            if not is_wanted(name):
                continue
            path = folder / name
            if not path.exists():
                raise PartFileError(path, "the file is missing", _AGAIN + ".")
            if path.stat().st_size != size_bytes:
                raise PartFileError(
                    path,
                    f"expected {size_bytes:,} bytes, got {path.stat().st_size:,}",
                    _AGAIN + ".",
                )

    def require_checksums(self, folder: Path, is_wanted: Callable[[str], bool]) -> Iterator[str]:
        """Read the wanted files block by block, and raise unless each is the one that was written."""
        for name, (_, checksum) in self.files.items():
            if is_wanted(name):
                found = 0
                for checksum_so_far in sum_in_blocks(folder / name):
                    found = checksum_so_far
                    yield name
                if found != checksum:
                    raise PartFileError(
                        folder / name,
                        f"its checksum is {found:#010x}, and {checksum:#010x} when it was written",
                        _AGAIN + ".",
                    )


def sum_file(path: Path) -> int:
    """The checksum of a file's bytes."""
    return [0, *sum_in_blocks(path)][-1]


def sum_in_blocks(path: Path) -> Iterator[int]:
    """The checksum of a file's first block, of its first two, and so on: a large file takes minutes."""
    checksum = 0
    try:
        with open(path, "rb") as file:
            while block := file.read(_SUMMED_BYTES):
                checksum = zlib.crc32(block, checksum)
                yield checksum
    except OSError as error:
        raise PartFileError(path, f"it cannot be read ({error.strerror})", _AGAIN + ".") from error


def sum_tensors(parts: Iterable[torch.Tensor]) -> int:
    """The checksum of tensors' numbers."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part.contiguous().view(torch.uint8).numpy().data, checksum)
    return checksum


def file_name(word: str) -> str:
    """A node type's or table's name as a file may be called."""
    return quote(word, safe="-_. ")


def part_file(part: int, node_type: str, table: str, suffix: str) -> str:
    """Where a part's rows of a table lie."""
    return f"part-{part}/{file_name(node_type)}.{file_name(table)}{suffix}"


def topology_file(column: str) -> str:
    """Where a column of all edges lies."""
    return f"topology/{column}.npy"


def work_file(name: str) -> str:
    """Where a file lies that no reader needs, while parts are written."""
    return f"{WORK}{name}.npy"


def rows_file(part: int, node_type: str, column: str) -> str:
    """Where a column of the edges into a part's nodes lies, where the topology is split."""
    return f"topology-{part}/{file_name(node_type)}.{column}.npy"


def part_of_file(name: str) -> int | None:
    """The part that alone needs a file; None for files that every rank needs.

    >>> part_of_file("part-12/paper.labels.npy"), part_of_file("topology-3/paper.edges.npy")
    (12, 3)
    >>> part_of_file("topology/edges.npy")
    """
    word, _, number = name.partition("/")[0].rpartition("-")
    return int(number) if word in ("part", "topology") else None


def holds_ids(name: str) -> bool:
    """Whether a file has ids or pointers, and not rows of a table.

    >>> [holds_ids(each) for each in ("topology-0/a.edges.npy", "hot/a.ids.npy", "hot/a.labels.npy")]
    [True, True, False]
    """
    folder = name.partition("/")[0]
    is_hot_row = folder == "hot" and not name.endswith(".ids.npy")
    return not (folder.startswith("part-") or is_hot_row)


def hot_file(node_type: str, table: str, suffix: str) -> str:
    """Where the rows lie that every rank keeps."""
    return f"hot/{file_name(node_type)}.{file_name(table)}{suffix}"


def hot_ids_file(node_type: str) -> str:
    """Which rows those are."""
    return f"hot/{file_name(node_type)}.ids.npy"


def originals_file(node_type: str) -> str:
    """For each id of the parts, the graph's."""
    return f"originals/{file_name(node_type)}.npy"


def seeds_file(node_type: str) -> str:
    """What is trained on."""
    return f"seeds/{file_name(node_type)}.npy"
