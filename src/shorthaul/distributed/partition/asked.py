"""What is cut, and how it is asked for: graphs, tables and seeds, checked before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shorthaul.distributed.partition.manifest import sum_tensors
from shorthaul.distributed.partition.methods import STREAM_PASSES
from shorthaul.errors import PartitionError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import read_numbers
from shorthaul.graphs.inclusion.target_rows import PIECE_EDGES, read_range
from shorthaul.graphs.saved_columns import GraphColumn, sum_up
from shorthaul.tensors import UnifiedTensor, unified
from shorthaul.tensors.tables.table import RowTable

Tables = Mapping[str, RowTable]
LAYOUTS = ("replicated", "split")  # of the topology: one for every rank, or rows by part


@dataclass(frozen=True)
class PartitionWishes:
    """What decides how a graph is cut and which rows are hot."""

    parts: int
    method: str = "stream"
    hot: float = 0.0
    fan_outs: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    passes: int = STREAM_PASSES
    topology: str = LAYOUTS[0]


def require_wishes(wishes: PartitionWishes) -> None:
    """Raise unless all numbers are ones that can be used."""
    if not 0 <= wishes.hot <= 1:
        raise PartitionError(f"hot must be a share of the rows, from 0 to 1, got {wishes.hot!r}.")
    for fan_out in wishes.fan_outs:
        if isinstance(fan_out, bool) or not isinstance(fan_out, int) or fan_out < -1:
            raise PartitionError(
                f"fan_outs must be whole numbers for all relations together, got {fan_out!r}."
            )
    if wishes.topology not in LAYOUTS:
        raise PartitionError(
            f"topology must be one of {', '.join(LAYOUTS)}, got {wishes.topology!r}."
        )
    for name in ("batch_size", "passes"):
        if getattr(wishes, name) < 1:
            raise PartitionError(f"{name} must be a whole number from 1 on.")


def read_tables(
    graph: RelationalGraph, usual: Mapping[str, Any], further: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, RowTable]]:
    """By node type, then by name."""
    found: dict[str, dict[str, RowTable]] = {}

    def add(kind: str, name: str, given: Any) -> None:
        count = len(graph.nodes_of(kind))
        table = given if isinstance(given, RowTable) else _as_unified(given).table
        if table.rows != count:
            raise PartitionError(
                f"the table `{name}` of `{kind}` must have a row for each of {count:,} nodes, got "
                f"shape {tuple(table.shape)}."
            )
        found.setdefault(kind, {})[name] = table

    for name, given in usual.items():
        if given is None:
            continue
        if isinstance(given, Mapping):
            for kind, each in given.items():
                add(kind, name, each)
        elif len(graph.node_types) == 1:
            add(graph.node_types[0], name, given)
        else:
            raise PartitionError(
                f"the graph has {len(graph.node_types)} node types: give {name} as a mapping of node "
                "types to tables."
            )
    for kind, tables in further.items():
        for name, each in tables.items():
            add(kind, name, each)
    return found


def _as_unified(given: Any) -> UnifiedTensor:
    return given if isinstance(given, UnifiedTensor) else unified(given)


def read_seeds(graph: RelationalGraph, seeds: Any) -> dict[str, torch.Tensor]:
    """By type, ids within it."""
    if seeds is None:
        return {}
    by_type = seeds if isinstance(seeds, Mapping) else None
    if by_type is None:
        nodes = read_numbers(seeds, "seeds").long()
        _require_nodes(nodes, graph.num_nodes, "the graph")
        by_type = {}
        for name in graph.node_types:
            of_type = graph.nodes_of(name)
            own = nodes[(nodes >= of_type.start) & (nodes < of_type.stop)]
            if len(own):
                by_type[name] = own - of_type.start
        return dict(by_type)
    found = {name: read_numbers(each, f"seeds[{name!r}]").long() for name, each in by_type.items()}
    for name, ids in found.items():
        _require_nodes(ids, len(graph.nodes_of(name)), f"type `{name}`")
    return found


def _require_nodes(ids: torch.Tensor, count: int, of: str) -> None:
    wrong = torch.nonzero((ids < 0) | (ids >= count))
    if len(wrong):
        at = int(wrong[0])
        raise PartitionError(
            f"seed {int(ids[at]):,} at position {at:,} is not a node: there are {count:,} of {of}, "
            "numbered from 0."
        )


def global_ids(graph: RelationalGraph, by_type: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Ids within types as ids of the graph."""
    parts = [ids.long() + graph.nodes_of(name).start for name, ids in by_type.items()]
    return torch.cat([torch.empty(0, dtype=torch.int64, device="cpu"), *parts])


def describe_run(
    graph: RelationalGraph,
    tables: Mapping[str, Tables],
    seeds: Mapping[str, torch.Tensor],
    wishes: PartitionWishes,
) -> str:
    """What is cut and how, in a few words: a run that is asked the same may go on with its files."""
    facts = {
        "graph": [_sum_column(each) for each in (graph.source, graph.target, graph.relation)],
        "types": [graph.node_types, graph.nodes_per_type, [list(each) for each in graph.relations]],
        "tables": {
            kind: {name: _describe_table(each) for name, each in named.items()}
            for kind, named in tables.items()
        },
        "seeds": {name: sum_tensors([ids]) for name, ids in seeds.items()},
        "wishes": vars(wishes),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _sum_column(column: torch.Tensor) -> int:
    """The checksum of a graph's column: that of its file, or of its numbers, read in pieces."""
    table = column.table if isinstance(column, UnifiedTensor) else None
    if isinstance(table, GraphColumn) and table.checksum is not None:
        return table.checksum
    pieces = (
        read_range(column, start, min(start + PIECE_EDGES, len(column)))
        for start in range(0, len(column), PIECE_EDGES)
    )
    found: list[int] = []
    for _ in sum_up(pieces, found):
        pass
    return found[0]


def _describe_table(table: RowTable) -> list[Any]:
    facts: list[Any] = [list(table.shape), str(table.dtype)]
    whole, layout = table.tensor(), getattr(table, "layout", None)
    if layout is not None:
        found = Path(layout.path).stat()
        return [*facts, os.fspath(Path(layout.path).absolute()), found.st_size, found.st_mtime_ns]
    return [*facts, None if whole is None else sum_tensors([whole])]
