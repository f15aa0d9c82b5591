"""Which format a path holds, from its name and its first bytes."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from shorthaul.errors import GraphFileError

_OPEN_KE_FILES = ("train2id.txt", "valid2id.txt", "test2id.txt")


def detect_format(path: Path) -> str:
    """The name of the format, as `RelationalGraph.read` takes it.

    ================================================  ==================
    a folder with `train2id.txt`                      `open_ke`
    a folder with, or called, `raw`, with OGB's files `ogb`
    `.npy`                                            `npy_pairs`
    `.nt`, or a first line that begins with < or _:   `n_triples`
    a first line of one number                        `open_ke`
    a line of two numbers                             `edge_list`
    a line of three numbers                           `triples`
    ================================================  ==================

    Compression is seen in the file, not in its name.
    """
    if path.is_dir():
        return _detect_folder(path)
    name = path.name.removesuffix(".gz")
    if name.endswith(".npy"):
        return "npy_pairs"
    if name.endswith(".nt"):
        return "n_triples"
    lines = [line for line in _first_lines(path) if line and line[0] not in "#%"]
    if lines and lines[0].startswith(("<", "_:")):
        return "n_triples"
    if lines and lines[0].isdecimal() and not name.endswith(".csv"):
        return "open_ke"
    # The last of the lines, because the first may be a header.
    fields = lines[-1].replace(",", " ").replace(";", " ").split() if lines else []
    if fields and fields[0].lstrip("-").isdecimal() and len(fields) in (2, 3):
        return "edge_list" if len(fields) == 2 else "triples"
    raise GraphFileError(
        path,
        None,
        "its format is not clear from its name or its first lines; say format='n_triples', "
        "'triples', 'open_ke', 'edge_list', 'npy_pairs' or 'ogb'.",
    )


def _detect_folder(path: Path) -> str:
    if any((path / name).exists() for name in _OPEN_KE_FILES):
        return "open_ke"
    for folder in (path / "raw", path):
        if any((folder / each).exists() for each in ("edge.csv.gz", "triplet-type-list.csv.gz")):
            return "ogb"
    raise GraphFileError(
        path,
        None,
        "expected OpenKE's train2id.txt or OGB's raw/edge.csv.gz in it; a folder that was saved with "
        "`graph.save` is opened with `RelationalGraph.open`.",
    )


def _first_lines(path: Path, most_bytes: int = 4096) -> list[str]:
    """The first lines, without the last, which may be cut off, unless it is the only one."""
    try:
        with open(path, "rb") as file:
            start = file.read(most_bytes)
            if start[:2] == b"\x1f\x8b":
                start = zlib.decompressobj(wbits=31).decompress(start, most_bytes)
    except (OSError, zlib.error, gzip.BadGzipFile) as error:
        raise GraphFileError(path, None, f"cannot be read: {error}.") from error
    lines = start.decode("utf-8-sig", errors="replace").splitlines()
    whole = lines[:-1] if len(lines) > 1 and len(start) >= most_bytes else lines
    return [line.strip() for line in whole[:50]]
