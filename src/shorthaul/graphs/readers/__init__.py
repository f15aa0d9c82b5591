"""Files -> graphs: `read_graph` finds out the format and hands the file to its reader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shorthaul.errors import GraphError
from shorthaul.graphs.graph import DOORS, RelationalGraph
from shorthaul.graphs.readers.detect import detect_format
from shorthaul.graphs.readers.n_triples import read_n_triples
from shorthaul.graphs.readers.npy_pairs import load_pairs, read_npy_pairs
from shorthaul.graphs.readers.ogb_folder import read_ogb_folder
from shorthaul.graphs.readers.open_ke import read_open_ke
from shorthaul.graphs.readers.triples import (
    EDGE_COLUMNS,
    read_columns,
    read_edge_list,
    read_triples,
)
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork

READERS: dict[str, Callable[..., RelationalGraph]] = {
    "n_triples": read_n_triples,
    "triples": read_triples,
    "open_ke": read_open_ke,
    "edge_list": read_edge_list,
    "npy_pairs": read_npy_pairs,
    "ogb": read_ogb_folder,
}


@outside_graphs
@alone_after_fork
def read_graph(path: Any, format: str | None = None, **options: Any) -> RelationalGraph:
    """The graph at `path`, a file or folder, or a mapping of relations to files of pairs."""
    if isinstance(path, Mapping):
        return _read_typed(path, format, **options)
    path = Path(os.fspath(path))
    name = detect_format(path) if format is None else format
    return READERS[_require_format(name)](path, **options)


def _read_typed(
    paths: Mapping[tuple[str, str, str], Any],
    format: str | None,
    *,
    columns: Any = EDGE_COLUMNS,
    has_header: bool | None = None,
    strict: bool = True,
    **options: Any,
) -> RelationalGraph:
    edges: dict[tuple[str, str, str], Any] = {}
    for relation, each in paths.items():
        path = Path(os.fspath(each))
        name = _require_format(detect_format(path) if format is None else format)
        if name == "npy_pairs":
            edges[relation] = load_pairs(path)
        elif name == "edge_list":
            edges[relation] = read_columns(path, columns, has_header, strict)[:2]
        else:
            raise GraphError(
                f"a file for one relation holds pairs, as edge_list or npy_pairs, but {path} is "
                f"{name}."
            )
    return RelationalGraph.from_typed_edges(edges, **options)


def _require_format(name: str) -> str:
    if name not in READERS:
        raise GraphError(f"there is no format {name!r}; there are {', '.join(READERS)}.")
    return name


DOORS.update(read_graph=read_graph)
