"""OpenKE's benchmarks: a count, then `head tail relation` on each line; names in files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shorthaul.errors import GraphFileError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.node_names import NodeNames
from shorthaul.graphs.readers.integer_rows import read_integer_rows
from shorthaul.graphs.readers.line_blocks import read_count, read_first_line, read_lines

COLUMNS = ("source", "target", "relation")
SPLITS = ("train", "valid", "test")


def read_open_ke(
    path: Path, *, splits: Sequence[str] = SPLITS, strict: bool = True, **options: Any
) -> RelationalGraph:
    """The graph of a folder of OpenKE's (`train2id.txt`, ..), or of one such file.

    Edges come in the order of `splits`; a split without a file is passed over, unless all are.
    Entities and relations are named by `entity2id.txt` and `relation2id.txt` where they are there.
    """
    files = [path]
    if path.is_dir():
        files = [
            path / f"{split}2id.txt" for split in splits if (path / f"{split}2id.txt").exists()
        ]
        if not files:
            wanted = ", ".join(f"{split}2id.txt" for split in splits)
            raise GraphFileError(path, None, f"expected one of {wanted} in it, found none.")
    folder = files[0].parent
    pieces, skipped = [], 0
    for file in files:
        rows, skipped_here = _read_split(file, strict)
        pieces.append(rows)
        skipped += skipped_here
    rows = torch.cat(pieces)
    for name, option in (("entity2id.txt", "node_names"), ("relation2id.txt", "relations")):
        if (folder / name).exists() and option not in options:
            options[option] = _read_names(folder / name)
    if "node_names" in options:
        options["node_names"] = NodeNames.of(options["node_names"])
    return RelationalGraph.from_edges(*rows.unbind(1), skipped_lines=skipped, **options)


def _read_split(path: Path, strict: bool) -> tuple[torch.Tensor, int]:
    count = _read_count(path)
    found = read_integer_rows(path, COLUMNS, has_header=True, strict=strict)
    if strict and found.rows.shape[0] != count:
        raise GraphFileError(
            path,
            1,
            f"promises {count:,} triples, but {found.rows.shape[0]:,} follow. Pass strict=False to "
            "take those that are there.",
        )
    return found.rows, found.skipped_lines


def _read_count(path: Path) -> int:
    return read_count(path, 1, read_first_line(path), "the number of lines that follow")


def _read_names(path: Path) -> list[str]:
    """Names by their numbers, from lines of a name, a tab or spaces, and a number."""
    count = _read_count(path)
    names: dict[int, str] = {}  # as many as there are, whatever was promised
    for number, line in enumerate(read_lines(path), start=1):
        if number == 1 or not line.strip():
            continue
        name, _, position = line.rstrip().replace("\t", " ").rpartition(" ")
        expected = f"a name and a number below {count:,} that occurs once"
        at = read_count(path, number, position, expected)
        if at >= count or at in names:
            raise GraphFileError(path, number, f"expected {expected}, got {line[:60]!r}.")
        names[at] = name.rstrip()
    if len(names) < count:
        missing = next(each for each in range(count) if each not in names)
        raise GraphFileError(path, None, f"number {missing:,} has no name.")
    return [names[each] for each in range(count)]
