"""Integer triples and edge lists: a line for each edge, whole numbers in columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shorthaul.errors import GraphError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.readers.integer_rows import read_integer_rows
from shorthaul.graphs.readers.line_blocks import read_line_blocks

TRIPLE_COLUMNS = ("source", "relation", "target")
EDGE_COLUMNS = ("source", "target")


def read_triples(
    path: Path,
    *,
    columns: Sequence[str | None] = TRIPLE_COLUMNS,
    has_header: bool | None = None,
    strict: bool = True,
    **options: Any,
) -> RelationalGraph:
    """A graph from lines such as `62596, 9, 765442`; plain or gzipped.

    `columns` says what each field is: source, target, relation, or None for one to pass over. A
    first line that begins with a letter or a quote is a header unless `has_header` says otherwise.
    Other options are those of `RelationalGraph.from_edges`.
    """
    source, target, relation, skipped = read_columns(path, columns, has_header, strict)
    return RelationalGraph.from_edges(source, target, relation, skipped_lines=skipped, **options)


def read_edge_list(
    path: Path, *, columns: Sequence[str | None] = EDGE_COLUMNS, **options: Any
) -> RelationalGraph:
    """A graph from lines such as `0 262`, with options as in `read_triples`.

    Where lines also hold a weight, say `columns=("source", "target", None)`.
    """
    return read_triples(path, columns=columns, **options)


def read_columns(
    path: Path, columns: Sequence[str | None], has_header: bool | None, strict: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]:
    """Sources, targets, relations where there are any, and the number of skipped lines."""
    kept = [name for name in columns if name is not None]
    if sorted(kept) not in (["source", "target"], ["relation", "source", "target"]):
        raise GraphError(
            "columns must name source and target, and may name relation, each once, with None for "
            f"fields to pass over; got {tuple(columns)!r}."
        )
    if has_header is None:
        has_header = _begins_with_words(path)
    found = read_integer_rows(path, columns, has_header=has_header, strict=strict)
    by_name = dict(zip(kept, found.rows.unbind(1), strict=True))
    return by_name["source"], by_name["target"], by_name.get("relation"), found.skipped_lines


def _begins_with_words(path: Path) -> bool:
    blocks = read_line_blocks(path, 4096)
    try:
        first = next(blocks, None)
    finally:
        blocks.close()  # type: ignore[attr-defined]
    start = bytes(first[:1].numpy()) if first is not None else b""
    return start.isalpha() or start in (b'"', b"'", b"_")
