"""Databases and tasks of RelBench's form -> graphs, and seeds or pairs with moments and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from shorthaul.errors import DatabaseError
from shorthaul.graphs.databases.from_tables import DatabaseGraph, from_tables
from shorthaul.graphs.databases.tables import Table
from shorthaul.graphs.edge_tensors import share_column
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.relation import Relation

_ENTITY_TASK = ("entity_col", "entity_table", "time_col", "target_col", "get_table")
_LINK_TASK = (
    "src_entity_col", "src_entity_table", "dst_entity_col", "dst_entity_table", "time_col", "get_table",
)  # fmt: skip


class TaskSeeds(NamedTuple):
    """The rows of an entity task's table, as `MiniBatchLoader` takes them."""

    seeds: torch.Tensor  # global ids
    times: torch.Tensor  # microseconds since 1970
    labels: torch.Tensor | None  # None where the table hides them


class TaskLinks(NamedTuple):
    """The rows of a recommendation task's table, and their answers as pairs, as `LinkLoader` takes them."""

    graph: RelationalGraph  # the database's, with the relation that is asked about, without edges
    relation: Relation  # that one
    seeds: torch.Tensor  # global ids of those who are asked about
    times: torch.Tensor  # of each, in microseconds since 1970
    rows: torch.Tensor  # of each answer, its place in `seeds`; empty where answers are hidden
    targets: torch.Tensor  # of each answer, its global id

    @property
    def pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and targets, one for each answer."""
        return self.seeds[self.rows], self.targets

    @property
    def pair_times(self) -> torch.Tensor:
        """The moment of each answer."""
        return self.times[self.rows]


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


def read_task(made: DatabaseGraph, task: Any, split: str) -> TaskSeeds | TaskLinks:
    """Who is asked about, at which moment, and the answer: of an entity task or a recommendation task.

    Args:
        made: What `from_relbench` made of the task's database.
        task: It has `entity_col`, `entity_table`, `time_col`, `target_col` and `get_table`; or, to
            recommend, `src_entity_col`, `src_entity_table`, `dst_entity_col`, `dst_entity_table`,
            `time_col` and `get_table`.
        split: `"train"`, `"val"` or `"test"`.
    """
    is_link = hasattr(task, "src_entity_table")
    missing = [
        each for each in (_LINK_TASK if is_link else _ENTITY_TASK) if not hasattr(task, each)
    ]
    if missing:
        raise DatabaseError(
            type(task).__name__,
            f"it has no `{missing[0]}`; entity tasks and recommendation tasks of RelBench are read.",
        )
    rows = task.get_table(split).df
    moments = np.asarray(rows[task.time_col], dtype="datetime64[us]").astype(np.int64)
    times = torch.from_numpy(moments.copy())
    if is_link:
        return _read_links(made, task, rows, times)
    seeds = made.find_nodes(task.entity_table, rows[task.entity_col])
    labels = None
    if task.target_col in rows:
        labels = torch.from_numpy(np.array(rows[task.target_col]))
    return TaskSeeds(seeds, times, labels)


def _read_links(made: DatabaseGraph, task: Any, rows: Any, times: torch.Tensor) -> TaskLinks:
    """Each row has a list of answers, or none where the table hides them."""
    answers: Sequence[list[Any]] = [[]] * len(rows)
    if task.dst_entity_col in rows:
        answers = [np.atleast_1d(each).tolist() for each in rows[task.dst_entity_col]]
    counts = torch.tensor([len(each) for each in answers], dtype=torch.int64, device="cpu")
    places = torch.arange(len(answers), dtype=torch.int64, device="cpu")
    relation = _choose_relation(made.graph, task.src_entity_table, task.dst_entity_table)
    graph = replace(
        made.graph,
        relations=(*made.graph.relations, relation),
        source=share_column(made.graph.source),  # of its own, as graphs are found by it
        indexes={},
    )
    return TaskLinks(
        graph,
        relation,
        made.find_nodes(task.src_entity_table, rows[task.src_entity_col]),
        times,
        places.repeat_interleave(counts),
        made.find_nodes(task.dst_entity_table, [each for own in answers for each in own]),
    )


def _choose_relation(graph: RelationalGraph, source: str, target: str) -> Relation:
    """A name that no foreign key has."""
    relation = Relation(source, "asked", target)
    while relation in graph.relations:
        relation = relation._replace(name=f"{relation.name}_again")
    return relation
