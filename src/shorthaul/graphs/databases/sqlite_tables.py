"""Tables of SQLite: the keys that it declares, and rows as Arrow tables with a type for each column."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shorthaul.errors import DatabaseError, MissingExtraError
from shorthaul.graphs.databases.names import quoted
from shorthaul.graphs.databases.tables import Table

_ROWS_AT_ONCE = 65_536


class DeclaredTables(NamedTuple):
    """What a SQLite database says of itself."""

    tables: dict[str, Table]
    skipped: tuple[str, ...]  # foreign keys that make no edges, and why


def read_sqlite_tables(database: sqlite3.Connection) -> DeclaredTables:
    """The tables of a SQLite database, with the keys that it declares."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    names = [row[0] for row in ask(database, query, "database")]
    columns = {name: _describe(database, name) for name in names}
    primary = {
        name: [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
        for name, rows in columns.items()
    }
    known = {name: [row[1] for row in rows] for name, rows in columns.items()}
    tables, skipped = {}, []
    for name in names:
        foreign: dict[str, str | tuple[str, str]] = {}
        for declared in _read_foreign_keys(database, name):
            found = _find_ends(name, declared, known, primary)
            if isinstance(found, str):
                skipped.append(found)
            elif found[0] in foreign:
                skipped.append(f"{_write(name, declared)}: `{found[0]}` refers to a table already")
            else:
                foreign[found[0]] = found[1]
        key = primary[name][0] if len(primary[name]) == 1 else None
        tables[name] = Table(primary_key=key, foreign_keys=foreign)
    return DeclaredTables(tables, tuple(skipped))


class _ForeignKey(NamedTuple):
    columns: tuple[str, ...]
    table: str
    others: tuple[str | None, ...]  # of that table; None for its primary key


def _read_foreign_keys(database: sqlite3.Connection, name: str) -> list[_ForeignKey]:
    """As they were declared, each with all of its columns."""
    rows = ask(database, f"PRAGMA foreign_key_list({quoted(name)})", name)
    found = []
    for number in sorted({row[0] for row in rows}, reverse=True):
        own = sorted((row for row in rows if row[0] == number), key=lambda row: row[1])
        found.append(
            _ForeignKey(tuple(row[3] for row in own), own[0][2], tuple(row[4] for row in own))
        )
    return found


def _find_ends(
    name: str,
    declared: _ForeignKey,
    known: Mapping[str, Sequence[str]],
    primary: Mapping[str, Sequence[str]],
) -> str | tuple[str, str | tuple[str, str]]:
    """A column and what it refers to, spelled as they are in the database; or why there is no such."""
    where = _write(name, declared)
    if len(declared.columns) > 1:
        return f"{where}: it has {len(declared.columns)} columns, and keys of one are followed"
    other = _spell(declared.table, known)
    if other is None:
        return f"{where}: there is no table `{declared.table}`"
    column = _spell(declared.columns[0], known[name])
    if declared.others[0] is None:
        if len(primary[other]) != 1:
            return f"{where}: the primary key of `{other}` has {len(primary[other])} columns"
        found: str | None = primary[other][0]
    else:
        found = _spell(declared.others[0], known[other])
    if column is None or found is None:
        return f"{where}: there is no such column"
    return column, other if [found] == list(primary[other]) else (other, found)


def _spell(given: str, known: Mapping[str, Any] | Sequence[str]) -> str | None:
    """A name as it was written where it was made; SQLite does not tell cases apart."""
    return next((each for each in known if each.lower() == given.lower()), None)


def _write(name: str, declared: _ForeignKey) -> str:
    others = ", ".join(each for each in declared.others if each is not None)
    return f"{name} ({', '.join(declared.columns)}) -> {declared.table} ({others or 'its primary key'})"


def read_sqlite_rows(database: sqlite3.Connection, name: str) -> Iterator[Any]:
    """An empty Arrow table with the columns, then the rows, some at a time."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("pyarrow", "database", "reading SQLite") from error
    try:
        schema = pyarrow.schema(list(_read_kinds(database, name, pyarrow)))
        yield schema.empty_table()
        cursor = database.cursor()
        cursor.row_factory = None
        cursor.execute(f"SELECT * FROM {quoted(name)}")
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            columns = [
                pyarrow.array([_convert(value, kind, pyarrow) for value in values], type=kind)
                for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
            ]
            yield pyarrow.table(columns, schema=schema)
    # Arrow's are of values that have another type than all of their column have: indexes may say so wrongly.
    except (sqlite3.Error, pyarrow.ArrowException) as error:
        raise DatabaseError(name, str(error)) from error


def _convert(value: Any, kind: Any, pyarrow: Any) -> Any:
    """A value of a column of several types as the column's one."""
    if value is None:
        return None
    if kind == pyarrow.string():
        return str(value)
    if kind == pyarrow.binary():
        return value if isinstance(value, bytes) else str(value).encode()
    return value


def _read_kinds(database: sqlite3.Connection, name: str, pyarrow: Any) -> Iterator[tuple[str, Any]]:
    """Columns of a SQLite table with the type that all of their values have, as values have types there."""
    found = [row[1] for row in _describe(database, name)]
    if not found:
        raise DatabaseError(name, "the database has no table of that name.")
    for column in found:
        query = f"SELECT DISTINCT typeof({quoted(column)}) FROM {quoted(name)}"
        kinds = {row[0] for row in ask(database, query, name)} - {"null"}
        if kinds <= {"integer"}:
            yield column, pyarrow.int64()
        elif kinds <= {"integer", "real"}:
            yield column, pyarrow.float64()
        else:
            yield column, pyarrow.binary() if "blob" in kinds else pyarrow.string()


def _describe(database: sqlite3.Connection, name: str) -> list[Any]:
    return ask(database, f"PRAGMA table_info({quoted(name)})", name)


def ask(database: sqlite3.Connection, query: str, where: str) -> list[Any]:
    """The rows of a query as tuples, whatever a connection makes of rows; an error says what it is about."""
    cursor = database.cursor()
    cursor.row_factory = None
    try:
        return cursor.execute(query).fetchall()
    except sqlite3.Error as error:
        raise DatabaseError(where, str(error)) from error
