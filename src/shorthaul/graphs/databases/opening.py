"""Tables of every kind -> tables of one DuckDB connection, whose rows are numbered from 0.

Rows are copied once, in their order, into a database of our own, which DuckDB keeps on disk where it
is larger than memory.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shorthaul.errors import DatabaseError, MissingExtraError
from shorthaul.graphs.databases.names import quoted
from shorthaul.graphs.databases.sqlite_tables import read_sqlite_rows
from shorthaul.graphs.databases.tables import Table

_ROWS_AT_ONCE = 65_536
_ARROW_START, _ARROW_STREAM_START = b"ARROW1", b"\xff\xff\xff\xff"
SQLITE_START = b"SQLite format 3\x00"


class Workspace:
    """One DuckDB database with a copy of every table, and the number of each of its rows."""

    def __init__(self, folder: Path) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise MissingExtraError("duckdb", "database", "sh.graphs.from_tables()") from error
        self.error: type[Exception] = duckdb.Error
        self.connection = duckdb.connect(
            str(folder / "tables.duckdb"), config={"temp_directory": str(folder / "spill")}
        )
        # Moments are those of UTC wherever the machine is.
        self.run("SET TimeZone = 'UTC'", "database")
        self._row_names: dict[str, str] = {}

    def run(self, query: str, where: str) -> Any:
        """The result of a query; DuckDB's error becomes one that says which table it is about."""
        try:
            return self.connection.execute(query)
        except self.error as error:
            raise DatabaseError(where, str(error)) from error

    def copy(self, name: str, table: Table, database: Any) -> None:
        """Make the table, in the order of its rows."""
        if isinstance(table.source, str | os.PathLike):
            self._copy_file(name, os.fspath(table.source))
        elif table.source is not None:
            self._copy_rows(name, table.source)
        elif isinstance(database, sqlite3.Connection):
            self._copy_sqlite(name, database)
        elif database is not None:
            self._copy_duckdb(name, database)
        else:
            raise DatabaseError(
                name, "it has no `source`, and there is no `database` to find it in."
            )
        self._number(name)

    def columns(self, name: str) -> dict[str, str]:
        """The type of each column, as DuckDB calls it."""
        rows = self.run(f"DESCRIBE {quoted(name)}", name).fetchall()
        number = self._row_names.get(name)
        return {str(row[0]): str(row[1]) for row in rows if quoted(str(row[0])) != number}

    def count(self, name: str) -> int:
        """How many rows it has."""
        return int(self.run(f"SELECT count(*) FROM {quoted(name)}", name).fetchone()[0])

    def row(self, name: str) -> str:
        """The number of a row in queries."""
        return self._row_names[name]

    def _number(self, name: str) -> None:
        """Find a name for the number of a row: a column that is called `rowid` hides DuckDB's."""
        columns = self.columns(name)
        hiding = next((each for each in columns if each.lower() == "rowid"), None)
        self._row_names[name] = "rowid"
        if hiding is None:
            return
        taken = {each.lower() for each in columns}
        column, number = (_find_free(word, taken) for word in ("column_rowid", "row_number"))
        copied = f"{name} as it was copied"
        for query in (
            f"ALTER TABLE {quoted(name)} RENAME COLUMN {quoted(hiding)} TO {quoted(column)}",
            f"ALTER TABLE {quoted(name)} RENAME TO {quoted(copied)}",
            f"CREATE VIEW {quoted(name)} AS SELECT * RENAME ({quoted(column)} AS {quoted(hiding)}), "
            f"rowid AS {quoted(number)} FROM {quoted(copied)}",
        ):
            self.run(query, name)
        self._row_names[name] = quoted(number)

    def _copy_file(self, name: str, path: str) -> None:
        reader = _open_arrow(name, path)
        if reader is not None:
            self._copy_rows(name, reader)
            return
        literal = path.replace("'", "''")
        self.run(f"CREATE TABLE {quoted(name)} AS SELECT * FROM read_parquet('{literal}')", name)

    def _copy_rows(self, name: str, source: Any) -> None:
        try:
            self.connection.register("given_rows", source)
        except (self.error, TypeError) as error:
            raise DatabaseError(
                name,
                f"its source is {type(source).__name__}; pass a pandas DataFrame, an Arrow table or the "
                "path of a Parquet, Arrow or Feather file.",
            ) from error
        self.run(f"CREATE TABLE {quoted(name)} AS SELECT * FROM given_rows", name)
        self.connection.unregister("given_rows")

    def _copy_duckdb(self, name: str, database: Any) -> None:
        """From another connection, by Arrow batches: connections do not share tables."""
        query = f"SELECT * FROM {quoted(name)}"
        try:
            try:
                found = database.cursor().sql(query)
            except self.error:  # what was registered is known to the connection itself alone
                found = database.sql(query)
            reader = found.to_arrow_reader(_ROWS_AT_ONCE)
        except self.error as error:
            raise DatabaseError(name, str(error)) from error
        self._copy_rows(name, reader)

    def _copy_sqlite(self, name: str, database: sqlite3.Connection) -> None:
        # SQLite is read by the thread that opened it, so DuckDB cannot ask for batches itself.
        parts = read_sqlite_rows(database, name)
        self._copy_rows(name, next(parts))
        for part in parts:
            self.connection.register("given_rows", part)
            self.run(f"INSERT INTO {quoted(name)} SELECT * FROM given_rows", name)
            self.connection.unregister("given_rows")


def _find_free(word: str, taken: set[str]) -> str:
    while word in taken:
        word += "_"
    return word


def _open_arrow(name: str, path: str) -> Any:
    """The batches of an Arrow or Feather file; None for a file of another kind, or several."""
    if not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        start = file.read(len(_ARROW_START))
    if start[:4] == _ARROW_STREAM_START or start == _ARROW_START:
        try:
            import pyarrow.dataset
            import pyarrow.ipc
        except ImportError as error:
            raise MissingExtraError("pyarrow", "database", "reading Arrow files") from error
        try:
            if start == _ARROW_START:
                return _verified(pyarrow.dataset.dataset(path, format="ipc").scanner().to_reader())
            return _verified(pyarrow.ipc.open_stream(pyarrow.memory_map(path)))
        except (pyarrow.ArrowException, OSError) as error:
            raise DatabaseError(name, f"{path} cannot be read: {error}") from error
    return None


def _verified(reader: Any) -> Any:
    """The same batches, each looked at: the offsets of a file are addresses to whoever reads it."""
    import pyarrow

    def batches() -> Iterator[Any]:
        for batch in reader:
            batch.validate(full=True)
            yield batch

    return pyarrow.RecordBatchReader.from_batches(reader.schema, batches())


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
        for column in table.foreign_keys:
            other, key = table.find_target(column)
            if other not in tables or (key or tables[other].primary_key) is None:
                raise DatabaseError(
                    name, f"`{column}` refers to `{other}`, which is no table with a primary key."
                )
            if key is not None:
                _require_unique(workspace, other, key, "column", may_miss=True)
        if table.primary_key is not None:
            _require_unique(workspace, name, table.primary_key, "primary key", may_miss=False)


def _require_unique(
    workspace: Workspace, name: str, column: str, what: str, *, may_miss: bool
) -> None:
    columns = workspace.columns(name)
    if column not in columns:
        raise DatabaseError(name, f"it has no column `{column}`; there are {', '.join(columns)}.")
    key = quoted(column)
    wrong_rows = (
        f"count(*) > 1 AND {key} IS NOT NULL" if may_miss else f"count(*) > 1 OR {key} IS NULL"
    )
    query = f"SELECT {key}, count(*) FROM {quoted(name)} GROUP BY 1 HAVING {wrong_rows} LIMIT 1"
    if wrong := workspace.run(query, name).fetchone():
        found = "is NULL" if wrong[0] is None else f"has {wrong[0]!r}"
        raise DatabaseError(name, f"its {what} `{column}` {found} in {wrong[1]:,} rows.")
