"""Files as tensors that share the page cache: every process of a machine reads one copy.

>>> import tempfile, numpy as np
>>> with tempfile.TemporaryDirectory() as folder:
...     np.save(f"{folder}/x.npy", np.arange(3))
...     map_file(f"{folder}/x.npy").tolist()
[0, 1, 2]
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.distributed.partition.manifest import COLUMNS, Manifest, topology_file
from shorthaul.errors import PartFileError
from shorthaul.graphs import Relation, RelationalGraph, TargetIndex
from shorthaul.tensors.files.formats import find_layout
from shorthaul.tensors.files.mapping import can_map, map_rows


def map_file(path: str | os.PathLike[str]) -> torch.Tensor:
    """The table in a file, its pages read when they are touched; writing changes this process's alone."""
    layout = find_layout(path)
    if not can_map(layout):
        raise PartFileError(path, "its rows do not lie side by side", "Cut the graph again.")
    return map_rows(layout)


def map_topology(
    folder: Path, manifest: Manifest, file: Callable[[str], str] = topology_file
) -> RelationalGraph:
    """The whole graph under the parts' ids, mapped and not read; `file` names that of a column."""
    index = TargetIndex(*(map_file(folder / file(each)) for each in COLUMNS))
    targets = map_file(folder / file("targets"))
    return _describe(manifest, (index.sources, targets, index.relations), {"target": index})


def describe_graph(manifest: Manifest) -> RelationalGraph:
    """Types and relations alone, for those who never look at an edge."""
    empty = torch.empty(0, dtype=getattr(torch, manifest.dtype), device="cpu")
    return _describe(manifest, (empty, empty, empty), {})


def _describe(
    manifest: Manifest,
    columns: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    indexes: dict[str, Any],
) -> RelationalGraph:
    book: PartitionBook = manifest.book
    return RelationalGraph(
        book.node_types,
        tuple(map(book.count, book.node_types)),
        tuple(Relation(*each) for each in manifest.relations),
        *columns,
        indexes=indexes,
    )
