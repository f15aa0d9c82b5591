"""Tables of every kind -> tables of one DuckDB connection, whose rows are numbered from 0.

Rows are copied once, in their order, into a database of our own, which DuckDB keeps on disk where it
is larger than memory. Text of users is never part of a query but as a quoted name.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shorthaul.errors import DatabaseError, MissingExtraError
from shorthaul.graphs.databases.tables import Table

_ROWS_AT_ONCE = 65_536
SQLITE_START = b"SQLite format 3\x00"


def quoted(name: str) -> str:
    """A name as it stands in a query.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


class Workspace:
    """One DuckDB database with a copy of every table; `rowid` is the number of a row."""

    def __init__(self, folder: Path) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise MissingExtraError("duckdb", "database", "sh.graphs.from_tables()") from error
        self.error: type[Exception] = duckdb.Error
        self.connection = duckdb.connect(
            str(folder / "tables.duckdb"), config={"temp_directory": str(folder / "spill")}
        )

    def run(self, query: str, where: str) -> Any:
        """The result of a query; DuckDB's error becomes one that says which table it is about."""
        try:
            return self.connection.execute(query)
        except self.error as error:
            raise DatabaseError(where, str(error)) from error

    def copy(self, name: str, table: Table, database: Any) -> None:
        """Make the table, in the order of its rows."""
        if table.source is not None:
            self._copy_source(name, table.source)
        elif isinstance(database, sqlite3.Connection):
            self._copy_sqlite(name, database)
        elif database is not None:
            self._copy_duckdb(name, database)
        else:
            raise DatabaseError(
                name, "it has no `source`, and there is no `database` to find it in."
            )

    def columns(self, name: str) -> dict[str, str]:
        """The type of each column, as DuckDB calls it."""
        rows = self.run(f"DESCRIBE {quoted(name)}", name).fetchall()
        return {str(row[0]): str(row[1]) for row in rows}

    def count(self, name: str) -> int:
        """How many rows it has."""
        return int(self.run(f"SELECT count(*) FROM {quoted(name)}", name).fetchone()[0])

    def _copy_source(self, name: str, source: Any) -> None:
        if isinstance(source, str | os.PathLike):
            path = os.fspath(source).replace("'", "''")
            query = f"CREATE TABLE {quoted(name)} AS SELECT * FROM read_parquet('{path}')"
            self.run(query, name)
            return
        try:
            self.connection.register("given_rows", source)
        except (self.error, TypeError) as error:
            raise DatabaseError(
                name,
                f"its source is {type(source).__name__}; pass a pandas DataFrame, an Arrow table or the "
                "path of a Parquet file.",
            ) from error
        self.run(f"CREATE TABLE {quoted(name)} AS SELECT * FROM given_rows", name)
        self.connection.unregister("given_rows")

    def _copy_duckdb(self, name: str, database: Any) -> None:
        """From another connection, by Arrow batches: connections do not share tables."""
        query = f"SELECT * FROM {quoted(name)}"
        try:
            reader = database.cursor().sql(query).to_arrow_reader(_ROWS_AT_ONCE)
        except self.error as error:
            raise DatabaseError(name, str(error)) from error
        self._copy_source(name, reader)

    def _copy_sqlite(self, name: str, database: sqlite3.Connection) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtraError("pyarrow", "database", "reading SQLite") from error
        try:
            schema = pyarrow.schema(
                [(column, kind) for column, kind in _read_kinds(database, name, pyarrow)]
            )
        except sqlite3.Error as error:
            raise DatabaseError(name, str(error)) from error
        self._copy_source(name, schema.empty_table())
        cursor = database.execute(f"SELECT * FROM {quoted(name)}")
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            columns = [
                pyarrow.array(
                    [*map(_as_text, values)] if kind == pyarrow.string() else values, type=kind
                )
                for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
            ]
            # SQLite is read by the thread that opened it, so DuckDB cannot ask for batches itself.
            self.connection.register("given_rows", pyarrow.table(columns, schema=schema))
            self.run(f"INSERT INTO {quoted(name)} SELECT * FROM given_rows", name)
            self.connection.unregister("given_rows")


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _read_kinds(database: sqlite3.Connection, name: str, pyarrow: Any) -> Iterator[tuple[str, Any]]:
    """Columns of a SQLite table with the type that all of their values have, as values have types there."""
    found = [row[1] for row in database.execute(f"PRAGMA table_info({quoted(name)})")]
    if not found:
        raise DatabaseError(name, "the database has no table of that name.")
    for column in found:
        query = f"SELECT DISTINCT typeof({quoted(column)}) FROM {quoted(name)}"
        kinds = {row[0] for row in database.execute(query)} - {"null"}
        if kinds <= {"integer"}:
            yield column, pyarrow.int64()
        elif kinds <= {"integer", "real"}:
            yield column, pyarrow.float64()
        else:
            yield column, pyarrow.binary() if "blob" in kinds else pyarrow.string()


def read_sqlite_tables(database: sqlite3.Connection) -> dict[str, Table]:
    """The tables of a SQLite database, with the keys that it declares."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    tables = {}
    for (name,) in database.execute(query).fetchall():
        columns = database.execute(f"PRAGMA table_info({quoted(name)})").fetchall()
        keys = [row[1] for row in columns if row[5]]
        foreign = database.execute(f"PRAGMA foreign_key_list({quoted(name)})").fetchall()
        tables[name] = Table(
            primary_key=keys[0] if len(keys) == 1 else None,
            foreign_keys={row[3]: row[2] for row in reversed(foreign)},
        )
    return tables


def open_database(given: Any) -> Any:
    """A connection to read from: as given, or of the file, which is opened for reading only."""
    if not isinstance(given, str | os.PathLike):
        return given
    path = Path(given)
    if not path.is_file():
        raise DatabaseError(str(path), "there is no such file.")
    with path.open("rb") as file:
        is_sqlite = file.read(len(SQLITE_START)) == SQLITE_START
    if is_sqlite:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("duckdb", "database", "sh.graphs.from_tables()") from error
    try:
        return duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        raise DatabaseError(str(path), f"it is neither SQLite nor DuckDB: {error}") from error


def require_keys(workspace: Workspace, tables: Mapping[str, Table]) -> None:
    """Raise unless every key and time is a column, and every primary key is there once."""
    for name, table in tables.items():
        columns = workspace.columns(name)
        encoded = [each for each, kind in (table.columns or {}).items() if isinstance(kind, str)]
        for column in filter(None, [table.primary_key, table.time, *table.foreign_keys, *encoded]):
            if column not in columns:
                known = ", ".join(columns)
                raise DatabaseError(name, f"it has no column `{column}`; there are {known}.")
        for column, other in table.foreign_keys.items():
            if other not in tables or tables[other].primary_key is None:
                raise DatabaseError(
                    name, f"`{column}` refers to `{other}`, which is no table with a primary key."
                )
        if table.primary_key is None:
            continue
        key = quoted(table.primary_key)
        query = f"SELECT {key}, count(*) FROM {quoted(name)} GROUP BY 1 HAVING count(*) > 1 OR {key} IS NULL LIMIT 1"
        if wrong := workspace.run(query, name).fetchone():
            what = "is NULL" if wrong[0] is None else f"has {wrong[0]!r}"
            raise DatabaseError(
                name, f"its primary key `{table.primary_key}` {what} in {wrong[1]:,} rows."
            )
