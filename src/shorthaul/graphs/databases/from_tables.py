"""`from_tables`: rows become nodes, foreign keys become edges, columns become features."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shorthaul.errors import DatabaseError, ForeignKeyError
from shorthaul.graphs.databases.column_types import write_time
from shorthaul.graphs.databases.encodings import (
    Encoder,
    choose_encodings,
    find_unencoded,
    fit_encoder,
)
from shorthaul.graphs.databases.names import quoted
from shorthaul.graphs.databases.opening import Workspace, open_database, require_keys
from shorthaul.graphs.databases.sqlite_tables import read_sqlite_tables
from shorthaul.graphs.databases.tables import Table
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.relation import Relation
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.tensors import open as open_table

_ROWS_AT_ONCE = 65_536
NO_TIME = -(2**63)  # of a row without a moment: it was always there


@dataclass(frozen=True, eq=False)
class DatabaseGraph:
    """Made by `from_tables`: a graph of rows, with what their columns say.

    Node `n` of type `t` is row `n` of table `t`, in the order in which the table gave its rows. Each
    foreign key is a relation `(table, column, other table)`, and there once more as
    `<column>_reversed`. Moments are node data `time`, in microseconds since 1970, or as they are where
    the column holds whole numbers.
    """

    graph: RelationalGraph
    features: Mapping[
        str, torch.Tensor
    ]  # float32, a row for each row, for tables that have columns
    feature_names: Mapping[str, tuple[str, ...]]  # what each column of the features is
    unmatched: Mapping[Relation, int]  # foreign keys that no primary key matches, not counting NULL
    keys: Mapping[str, Mapping[Any, int]]  # the row of each primary key
    # Columns without an encoding, with their types, by table: those of types that have none.
    unencoded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    skipped_keys: Sequence[str] = ()  # foreign keys of SQLite that make no edges, and why

    def find_nodes(self, table: str, keys: Any) -> torch.Tensor:
        """Global ids of the rows with these primary keys.

        Args:
            table: The table.
            keys: Values of its primary key.
        """
        own, start = self.keys.get(table), self.graph.nodes_of(table).start
        if own is None:
            raise DatabaseError(table, "it has no primary key by which rows could be found.")
        listed = keys.tolist() if hasattr(keys, "tolist") else list(keys)
        missing = [each for each in listed if each not in own]
        if missing:
            raise DatabaseError(table, f"no row has the primary key {missing[0]!r}.")
        return torch.tensor([start + own[each] for each in listed], dtype=torch.int64, device="cpu")


@alone_after_fork
def from_tables(
    tables: Mapping[str, Table] | None = None,
    *,
    database: Any = None,
    strict: bool = False,
    folder: Any = None,
) -> DatabaseGraph:
    """A graph of the rows of tables: DuckDB numbers, joins and sorts them, batch by batch.

    Needs the extra `database` (`pip install 'shorthaul[database]'`).

    Args:
        tables: What is known of each table, by name; None (default) reads the names and keys that a
            SQLite database declares.
        database: Where tables without a `source` are: the path of a SQLite or DuckDB file, or a
            connection; None (default) for none.
        strict: Whether a foreign key that matches no primary key is an error; otherwise (default) it
            makes no edge, and is counted in `unmatched`.
        folder: Where features are written, to be read from disk row by row; None (default) keeps them
            in memory.
    """
    opened = open_database(database)
    try:
        return _make(opened, tables, strict=strict, folder=folder)
    finally:
        if opened is not None and opened is not database:
            opened.close()


def _make(
    opened: Any, tables: Mapping[str, Table] | None, *, strict: bool, folder: Any
) -> DatabaseGraph:
    """The graph of tables that are in `opened`, or say themselves where they are."""
    skipped: tuple[str, ...] = ()
    if tables is None:
        if not isinstance(opened, sqlite3.Connection):
            raise DatabaseError("database", "only SQLite declares its keys: pass `tables`.")
        tables, skipped = read_sqlite_tables(opened)
        if skipped and strict:
            raise DatabaseError(
                "database",
                f"a foreign key makes no edges: {skipped[0]}.\n"
                "  With strict=False it is named in `skipped_keys`; or pass `tables`.",
            )
    if not tables:
        raise DatabaseError("database", "there is no table.")
    with tempfile.TemporaryDirectory() as place:
        workspace = Workspace(Path(place))
        try:
            for name, table in tables.items():
                workspace.copy(name, table, opened)
            made = _build(workspace, tables, strict=strict, folder=folder)
            return replace(made, skipped_keys=skipped)
        finally:
            workspace.connection.close()


def _build(
    workspace: Workspace, tables: Mapping[str, Table], *, strict: bool, folder: Any
) -> DatabaseGraph:
    require_keys(workspace, tables)
    counts = {name: workspace.count(name) for name in tables}
    edges: dict[tuple[str, str, str], torch.Tensor] = {}
    unmatched: dict[Relation, int] = {}
    for name, table in tables.items():
        for column in table.foreign_keys:
            other, _ = table.find_target(column)
            relation = Relation(name, column, other)
            edges[relation], lost = _join(workspace, tables, relation)
            if lost and strict:
                raise ForeignKeyError(name, column, other, lost)
            unmatched[relation] = lost
    graph = RelationalGraph.from_typed_edges(edges, counts).with_inverses()
    times = _read_times(workspace, tables, counts)
    if times:
        graph = graph.with_data(nodes={"time": times})
    features, names = {}, {}
    for name, table in tables.items():
        made = _encode(workspace, name, table, counts[name], folder)
        if made is not None:
            features[name], names[name] = made
    keys = {
        name: _read_keys(workspace, name, table.primary_key)
        for name, table in tables.items()
        if table.primary_key is not None
    }
    unencoded = {name: find_unencoded(workspace, name, table) for name, table in tables.items()}
    unencoded = {name: columns for name, columns in unencoded.items() if columns}
    return DatabaseGraph(graph, features, names, unmatched, keys, unencoded)


def _join(
    workspace: Workspace, tables: Mapping[str, Table], relation: Relation
) -> tuple[torch.Tensor, int]:
    """The rows that a foreign key joins, and how many of its values match no row."""
    name, column, other = relation
    key = tables[name].find_target(column)[1] or tables[other].primary_key
    assert key is not None
    rows = f"one.{workspace.row(name)}", f"other.{workspace.row(other)}"
    ends = (
        f"{quoted(name)} AS one LEFT JOIN {quoted(other)} AS other "
        f"ON one.{quoted(column)} = other.{quoted(key)}"
    )
    given = f"one.{quoted(column)} IS NOT NULL"
    where = f"{name}.{column}"
    lost = workspace.run(
        f"SELECT count(*) FROM {ends} WHERE {given} AND {rows[1]} IS NULL", where
    ).fetchone()[0]
    found = workspace.run(
        f"SELECT {rows[0]} AS source, {rows[1]} AS target FROM {ends} "
        f"WHERE {given} AND {rows[1]} IS NOT NULL ORDER BY 1",
        where,
    ).fetchnumpy()
    columns = [
        torch.from_numpy(np.array(found[end], dtype=np.int64)) for end in ("source", "target")
    ]
    return torch.stack(columns), int(lost)


def _read_times(
    workspace: Workspace, tables: Mapping[str, Table], counts: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """The times of the tables that have them: all of them moments, or all of them plain numbers."""
    found: dict[str, torch.Tensor] = {}
    plain: list[str] = []
    dated: list[str] = []
    for name, table in tables.items():
        if table.time is None:
            continue
        kind = workspace.columns(name)[table.time]
        column = quoted(table.time)
        value = write_time(name, table.time, column, kind, table.time_unit)
        (plain if value == column else dated).append(name)
        row = workspace.row(name)
        query = f"SELECT coalesce(CAST({value} AS BIGINT), {NO_TIME + 1} - 1) AS time FROM {quoted(name)} ORDER BY {row}"
        times = workspace.run(query, f"{name}.{table.time}").fetchnumpy()["time"]
        found[name] = torch.from_numpy(np.array(times, dtype=np.int64).reshape(counts[name]))
    if plain and dated:
        raise DatabaseError(
            plain[0],
            f"its time `{tables[plain[0]].time}` holds whole numbers, that of `{dated[0]}` is in "
            "microseconds since 1970.\n"
            "  Say what they count since 1970: time_unit='s', 'ms', 'us' or 'ns'.",
        )
    return found


def _read_keys(workspace: Workspace, name: str, column: str) -> dict[Any, int]:
    row = workspace.row(name)
    query = f"SELECT {quoted(column)}, {row} FROM {quoted(name)} ORDER BY 2"
    return {found[0]: int(found[1]) for found in workspace.run(query, name).fetchall()}


def _encode(
    workspace: Workspace, name: str, table: Table, count: int, folder: Any
) -> tuple[torch.Tensor, tuple[str, ...]] | None:
    """The features of a table, written batch by batch, and what each column is."""
    encoders = [
        fit_encoder(workspace, name, column, kind)
        for column, kind in choose_encodings(workspace, name, table).items()
    ]
    given = {
        column: _read_given(name, column, rows, count)
        for column, rows in (table.columns or {}).items()
        if not isinstance(rows, str)
    }
    names = [each for encoder in encoders for each in encoder.names]
    names += [f"{column} {at}" for column, rows in given.items() for at in range(rows.shape[1])]
    if not names:
        return None
    path = None if folder is None else Path(folder) / f"{name}.npy"
    if path is None:
        rows = np.empty((count, len(names)), dtype=np.float32)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, len(names)))
    for start in range(0, count, _ROWS_AT_ONCE):
        stop = min(count, start + _ROWS_AT_ONCE)
        parts = _encode_rows(workspace, name, encoders, start, stop)
        parts += [each[start:stop].numpy() for each in given.values()]
        rows[start:stop] = np.concatenate(parts, 1)
    if path is None:
        return torch.from_numpy(rows), tuple(names)
    assert isinstance(rows, np.memmap)
    rows.flush()
    del rows
    return open_table(path), tuple(names)


def _encode_rows(
    workspace: Workspace, name: str, encoders: list[Encoder], start: int, stop: int
) -> list[Any]:
    if not encoders:
        return []
    values = ", ".join(f"{each.expression} AS c{at}" for at, each in enumerate(encoders))
    row = workspace.row(name)
    query = f"SELECT {values} FROM {quoted(name)} WHERE {row} >= {start} AND {row} < {stop} ORDER BY {row}"
    found = workspace.run(query, name).fetchnumpy()
    parts = []
    for at, encoder in enumerate(encoders):
        column = found[f"c{at}"]
        missing = np.array(np.ma.getmaskarray(column))
        plain = np.ma.getdata(column)
        if plain.dtype.kind == "f":
            missing |= ~np.isfinite(plain)
        else:
            missing |= np.array([each is None for each in plain], dtype=bool)
        parts.append(encoder.encode(plain, missing))
    return parts


def _read_given(name: str, column: str, rows: Any, count: int) -> torch.Tensor:
    """Rows that the user brings, such as embeddings of texts."""
    tensor = torch.as_tensor(rows, device="cpu")
    if tensor.dim() != 2 or tensor.shape[0] != count:
        raise DatabaseError(
            name,
            f"`{column}` brings rows of shape {tuple(tensor.shape)}; it must be (rows, width) with "
            f"{count:,} rows.",
        )
    return tensor.detach().float()
