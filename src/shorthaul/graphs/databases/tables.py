"""What a user says of a table: where its rows are, and what its columns mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENCODINGS = ("number", "category", "timestamp", "text")


@dataclass(frozen=True, eq=False)
class Table:
    """A table whose rows become nodes.

    >>> Table(primary_key="id", foreign_keys={"author_id": "author"}, time="published")
    Table(primary_key='id', foreign_keys={'author_id': 'author'}, time='published')
    """

    # A pandas DataFrame, an Arrow table or the path of a Parquet, Arrow or Feather file; None (default)
    # for the table of that name in the database.
    source: Any = field(default=None, repr=False)
    primary_key: str | None = None  # a column whose values are there once; None (default) for none
    # By column: the table whose primary key it holds, or (table, column) where it is another column.
    foreign_keys: Mapping[str, str | tuple[str, str]] = field(default_factory=dict)
    time: str | None = None  # a column of moments: nothing earlier sees the row
    # Encodings by column: "number", "category", "timestamp", "text", or a tensor with a row for each
    # row of the table, such as embeddings; None (default) chooses one for each column that is no key.
    columns: Mapping[str, Any] | None = field(default=None, repr=False)
    # What numbers in `time` count since 1970: "s", "ms", "us" or "ns"; None (default) for whole numbers
    # that are moments as they are.
    time_unit: str | None = field(default=None, repr=False)

    def find_target(self, column: str) -> tuple[str, str | None]:
        """The table that a foreign key refers to, and the column; None for its primary key."""
        given = self.foreign_keys[column]
        return (given, None) if isinstance(given, str) else (given[0], given[1])
