"""Columns of tables -> columns of numbers: fitted on the whole table by DuckDB, written batch by batch.

| encoding | columns | missing values |
| --- | --- | --- |
| number | (value - mean) / deviation | 0, and 1 in a column of their own |
| category | one for each of the most frequent values, one for all others | 0 everywhere |
| timestamp | as a number, then sine and cosine of the part of the day, week and year | 0 everywhere |
| text | counts of words by a hash of each, of length 1 | 0 everywhere |
| a tensor | its own | |
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shorthaul.errors import DatabaseError
from shorthaul.graphs.databases.column_types import (
    MOMENTS,
    TIMES_OF_DAY,
    is_category,
    is_number,
    write_moment,
)
from shorthaul.graphs.databases.names import quoted
from shorthaul.graphs.databases.opening import Workspace
from shorthaul.graphs.databases.tables import ENCODINGS, Table

Column = npt.NDArray[Any]
Rows = npt.NDArray[np.float32]

MOST_CATEGORIES = 32
TEXT_COLUMNS = 64
_SECONDS = {"day": 86_400.0, "week": 604_800.0, "year": 31_556_952.0}
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class Encoder:
    """One column of a table: what DuckDB reads of it, and what becomes of that."""

    expression: str
    names: tuple[str, ...]  # of the columns that it makes
    encode: Callable[[Column, Column], Rows]  # values and which are missing -> a row for each


def choose_encodings(workspace: Workspace, name: str, table: Table) -> dict[str, str]:
    """An encoding for each column, as asked for or by its type; keys and times have none."""
    keys = {table.primary_key, table.time, *table.foreign_keys}
    types = workspace.columns(name)
    if table.columns is not None:
        chosen = {each: kind for each, kind in table.columns.items() if isinstance(kind, str)}
        for column, kind in chosen.items():
            if kind not in ENCODINGS:
                raise DatabaseError(
                    name,
                    f"`{column}` is to be {kind!r}; an encoding is one of {', '.join(ENCODINGS)}.",
                )
        return chosen
    found = {}
    for column, kind in types.items():
        encoding = None if column in keys else _choose_encoding(workspace, name, column, kind)
        if encoding is not None:
            found[column] = encoding
    return found


def find_unencoded(workspace: Workspace, name: str, table: Table) -> dict[str, str]:
    """The columns that none was chosen for, with their types; where encodings are given, none is missed."""
    if table.columns is not None:
        return {}
    known = {table.primary_key, table.time, *table.foreign_keys}
    known |= set(choose_encodings(workspace, name, table))
    return {name: kind for name, kind in workspace.columns(name).items() if name not in known}


def _choose_encoding(workspace: Workspace, name: str, column: str, kind: str) -> str | None:
    if is_number(kind):
        return "number"
    if kind in MOMENTS or kind in TIMES_OF_DAY:
        return "timestamp"
    if is_category(kind):
        return "category"
    if kind != "VARCHAR":
        return None
    query = f"SELECT approx_count_distinct({quoted(column)}) FROM {quoted(name)}"
    distinct = workspace.run(query, name).fetchone()[0]
    return "category" if distinct <= MOST_CATEGORIES else "text"


def fit_encoder(workspace: Workspace, name: str, column: str, kind: str) -> Encoder:
    """The encoder of a column; means, deviations and categories are those of the whole table."""
    held = workspace.columns(name)[column]
    if kind == "number":
        expression = (
            f"epoch({quoted(column)})"
            if held == "INTERVAL"
            else f"CAST({quoted(column)} AS DOUBLE)"
        )
        mean, deviation = _measure(workspace, name, expression)
        names: tuple[str, ...] = (column, f"{column} is missing")

        def encode(values: Column, missing: Column) -> Rows:
            scaled = np.where(missing, 0.0, (values.astype(np.float64) - mean) / deviation)
            return np.stack([scaled, missing.astype(np.float64)], 1).astype(np.float32)

        return Encoder(expression, names, encode)
    if kind == "timestamp":
        expression, parts = f"epoch({write_moment(quoted(column), held)})", tuple(_SECONDS)
        if held in TIMES_OF_DAY:
            expression, parts = f"epoch(CAST({quoted(column)} AS TIME))", ("day",)
        mean, deviation = _measure(workspace, name, expression)
        waves = tuple(
            f"{column} {wave} of the {part}" for part in parts for wave in ("sine", "cosine")
        )
        return Encoder(expression, (column, *waves), _encode_times(mean, deviation, parts))
    expression = f"CAST({quoted(column)} AS VARCHAR)"
    if kind == "text":
        names = tuple(f"{column} words {number}" for number in range(TEXT_COLUMNS))
        return Encoder(expression, names, _encode_words)
    query = (
        f"SELECT {expression} AS value, count(*) FROM {quoted(name)} WHERE {quoted(column)} IS NOT NULL "
        f"GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MOST_CATEGORIES}"
    )
    known = [row[0] for row in workspace.run(query, name).fetchall()]
    places = {value: place for place, value in enumerate(known)}

    def encode_category(values: Column, missing: Column) -> Rows:
        rows = np.zeros((len(values), len(known) + 1), dtype=np.float32)
        for row, value in enumerate(values):
            if not missing[row]:
                rows[row, places.get(value, len(known))] = 1.0
        return rows

    names = (*(f"{column} is {value}" for value in known), f"{column} is another")
    return Encoder(expression, names, encode_category)


def _measure(workspace: Workspace, name: str, expression: str) -> tuple[float, float]:
    query = (
        f"SELECT avg({expression}), stddev_pop({expression}) FROM {quoted(name)} "
        f"WHERE isfinite({expression})"
    )
    mean, deviation = workspace.run(query, name).fetchone()
    return float(mean or 0.0), float(deviation or 0.0) or 1.0


def _encode_times(
    mean: float, deviation: float, parts: Sequence[str]
) -> Callable[[Column, Column], Rows]:
    def encode(values: Column, missing: Column) -> Rows:
        seconds = np.where(missing, mean, values.astype(np.float64))
        columns = [(seconds - mean) / deviation]
        for part in parts:
            angle = 2 * math.pi * (seconds % _SECONDS[part]) / _SECONDS[part]
            columns += [np.sin(angle), np.cos(angle)]
        rows = np.stack(columns, 1)
        rows[missing] = 0.0
        return rows.astype(np.float32)

    return encode


def _encode_words(values: Column, missing: Column) -> Rows:
    rows = np.zeros((len(values), TEXT_COLUMNS), dtype=np.float32)
    for row, value in enumerate(values):
        if missing[row]:
            continue
        for word in _WORD.findall(value.lower()):
            rows[row, zlib.crc32(word.encode()) % TEXT_COLUMNS] += 1.0
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    np.divide(rows, lengths, out=rows, where=lengths > 0)
    return rows
