"""What DuckDB calls the types of columns -> what they mean here, and moments as microseconds."""

from __future__ import annotations

import re

from shorthaul.errors import DatabaseError

WHOLE = frozenset(
    f"{sign}{size}"
    for sign in ("", "U")
    for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
)
REAL = frozenset({"FLOAT", "DOUBLE"})
MOMENTS = frozenset(
    {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"}
)
TIMES_OF_DAY = frozenset({"TIME", "TIME WITH TIME ZONE", "TIME_NS"})
# Microseconds of one, as numerator and denominator.
UNITS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
_DECIMAL = re.compile(r"DECIMAL\(\d+,\d+\)")


def is_number(kind: str) -> bool:
    """Whether a column holds numbers, and no lists of them.

    >>> is_number("UBIGINT"), is_number("DECIMAL(5,2)"), is_number("FLOAT[3]"), is_number("UUID")
    (True, True, False, False)
    """
    return kind in WHOLE or is_real(kind) or kind in ("BOOLEAN", "INTERVAL")


def is_real(kind: str) -> bool:
    """Whether a column holds numbers that need not be whole."""
    return kind in REAL or _DECIMAL.fullmatch(kind) is not None


def is_category(kind: str) -> bool:
    """Whether a column holds one of some values that are named with its type."""
    return kind.startswith("ENUM(") and kind.endswith(")")


def write_moment(name: str, kind: str) -> str:
    """The query for a timestamp of a column, in UTC; text says itself how far it is from there."""
    is_zoned = kind in ("VARCHAR", "TIMESTAMP WITH TIME ZONE")
    return f"CAST({name} AS {'TIMESTAMPTZ' if is_zoned else 'TIMESTAMP'})"


def write_time(table: str, column: str, name: str, kind: str, unit: str | None) -> str:
    """The query for a table's times: microseconds, or whole numbers as they are."""
    if unit is not None and unit not in UNITS:
        raise DatabaseError(
            table, f"time_unit is {unit!r}; it is one of {', '.join(map(repr, UNITS))}, or None."
        )
    if kind not in WHOLE and not is_real(kind):
        if unit is not None:
            raise DatabaseError(
                table, f"time_unit is {unit!r}, but `{column}` holds no numbers: it is {kind}."
            )
        return f"epoch_us({write_moment(name, kind)})"
    if unit is None:
        if kind not in WHOLE:
            raise DatabaseError(
                table,
                f"its time `{column}` holds numbers that are not whole ({kind}).\n"
                "  Say what they count since 1970: time_unit='s', 'ms', 'us' or 'ns'.",
            )
        return name
    many, few = UNITS[unit]
    if kind in WHOLE:
        return f"CAST({name} AS HUGEINT) * {many} // {few}"
    return f"CASE WHEN isfinite(CAST({name} AS DOUBLE)) THEN round(CAST({name} AS DOUBLE) * {many} / {few}) END"
