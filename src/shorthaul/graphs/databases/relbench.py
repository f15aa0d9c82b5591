"""Databases and tasks of RelBench's form -> graphs, and seeds with moments and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from shorthaul.errors import DatabaseError
from shorthaul.graphs.databases.from_tables import DatabaseGraph, from_tables
from shorthaul.graphs.databases.tables import Table


class TaskSeeds(NamedTuple):
    """The rows of a task's table, as `MiniBatchLoader` takes them."""

    seeds: torch.Tensor  # global ids
    times: torch.Tensor  # microseconds since 1970
    labels: torch.Tensor | None  # None where the table hides them


def from_relbench(
    database: Any,
    *,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
    strict: bool = False,
    folder: Any = None,
) -> DatabaseGraph:
    """The graph of a RelBench `Database`, or of anything with such a `table_dict`.

    Args:
        database: Its tables have `df`, `pkey_col`, `fkey_col_to_pkey_table` and `time_col`.
        columns: Encodings of columns, as in `Table`, by table; None (default) chooses them.
        strict: As in `from_tables` (default False).
        folder: As in `from_tables`; None (default) keeps features in memory.
    """
    tables = {
        name: Table(
            each.df,
            each.pkey_col,
            dict(each.fkey_col_to_pkey_table),
            each.time_col,
            None if columns is None else columns.get(name),
        )
        for name, each in database.table_dict.items()
    }
    return from_tables(tables, strict=strict, folder=folder)


def read_task(made: DatabaseGraph, task: Any, split: str) -> TaskSeeds:
    """The seeds of an entity task: who is asked about, at which moment, and the answer.

    Args:
        made: What `from_relbench` made of the task's database.
        task: It has `entity_col`, `entity_table`, `time_col`, `target_col` and `get_table`.
        split: `"train"`, `"val"` or `"test"`.
    """
    for name in ("entity_col", "entity_table", "time_col", "target_col", "get_table"):
        if not hasattr(task, name):
            raise DatabaseError(
                type(task).__name__, f"it has no `{name}`; entity tasks of RelBench are read."
            )
    rows = task.get_table(split).df
    seeds = made.find_nodes(task.entity_table, rows[task.entity_col])
    moments = np.asarray(rows[task.time_col], dtype="datetime64[us]").astype(np.int64)
    labels = None
    if task.target_col in rows:
        labels = torch.from_numpy(np.array(rows[task.target_col]))
    return TaskSeeds(seeds, torch.from_numpy(moments.copy()), labels)
