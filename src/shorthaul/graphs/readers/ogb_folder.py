"""A folder of the Open Graph Benchmark as it was downloaded, or its `raw` folder.

::

    raw/edge.csv.gz, num-node-list.csv.gz          one node type; edge_reltype.csv.gz where edges have
                                                   relations
    raw/triplet-type-list.csv.gz, num-node-dict.csv.gz, relations/author___writes___paper/edge.csv.gz
                                                   several
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from shorthaul.errors import GraphFileError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.readers.integer_rows import read_integer_rows
from shorthaul.graphs.readers.line_blocks import read_count, read_lines
from shorthaul.graphs.relation import Relation


def read_ogb_folder(path: Path, **options: Any) -> RelationalGraph:
    """The one graph of a node- or link-prediction data set; edges as stored, no inverses added."""
    raw = path / "raw" if (path / "raw").is_dir() else path
    if (raw / "triplet-type-list.csv.gz").exists():
        return _read_typed(raw, **options)
    if not (raw / "edge.csv.gz").exists():
        raise GraphFileError(
            raw, None, "expected edge.csv.gz or triplet-type-list.csv.gz in it, found neither."
        )
    nodes = _read_one_count(raw / "num-node-list.csv.gz")
    edges = read_integer_rows(raw / "edge.csv.gz", ("source", "target")).rows
    relation = None
    if (raw / "edge_reltype.csv.gz").exists():
        relation = read_integer_rows(raw / "edge_reltype.csv.gz", ("relation",)).rows[:, 0]
    _require_edges(raw, edges.shape[0])
    options.setdefault("num_nodes", nodes)
    return RelationalGraph.from_edges(edges[:, 0], edges[:, 1], relation, **options)


def _read_typed(raw: Path, **options: Any) -> RelationalGraph:
    path = raw / "num-node-dict.csv.gz"
    lines = _read_table(path)
    if len(lines) != 2 or len(lines[0]) != len(lines[1]) or len(set(lines[0])) < len(lines[0]):
        raise GraphFileError(
            path,
            None,
            "expected names of node types, each once, and one line with a count for each, got "
            f"{len(lines):,} lines.",
        )
    nodes_per_type = {name: _read_whole(path, 2, text) for name, text in zip(*lines, strict=True)}
    edges: dict[tuple[str, str, str], Any] = {}
    for number, words in enumerate(_read_table(raw / "triplet-type-list.csv.gz"), start=1):
        if len(words) != 3 or tuple(words) in edges or not all(map(_is_word, words)):
            raise GraphFileError(
                raw / "triplet-type-list.csv.gz",
                number,
                f"expected source type, relation and target type, not named before, got {words}.",
            )
        folder = raw / "relations" / "___".join(words)
        rows = read_integer_rows(folder / "edge.csv.gz", ("source", "target")).rows
        _require_edges(folder, rows.shape[0])
        edges[Relation(*words)] = rows.t()
    return RelationalGraph.from_typed_edges(edges, nodes_per_type, **options)


def _is_word(word: str) -> bool:
    """Whether it may be a part of a folder's name, and of no other folder's."""
    return word.isprintable() and "/" not in word


def _require_edges(folder: Path, found: int) -> None:
    path = folder / "num-edge-list.csv.gz"
    if path.exists() and (promised := _read_one_count(path)) != found:
        raise GraphFileError(
            path, 1, f"promises {promised:,} edges, but edge.csv.gz has {found:,}."
        )


def _read_one_count(path: Path) -> int:
    lines = _read_table(path)
    if len(lines) != 1 or len(lines[0]) != 1:
        raise GraphFileError(
            path,
            None,
            f"expected one count, for one graph, got {len(lines):,} lines. Data sets of many graphs "
            "are not read.",
        )
    return _read_whole(path, 1, lines[0][0])


def _read_whole(path: Path, line: int, text: str) -> int:
    return read_count(path, line, text.strip(), "a count")


def _read_table(path: Path) -> list[list[str]]:
    """A small CSV file, gzipped as OGB's are."""
    try:
        return [line for line in csv.reader(read_lines(path)) if line]
    except csv.Error as error:
        raise GraphFileError(path, None, f"cannot be read: {error}.") from error
