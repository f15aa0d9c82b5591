"""Errors about graphs, their files and samples of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shorthaul.errors.root import ShorthaulError


class GraphError(ShorthaulError, ValueError):
    """A graph was asked for with tensors, types or relations that do not fit together."""


class EdgeRangeError(GraphError, IndexError):
    """An edge names a node or relation that the graph does not have."""

    def __init__(self, end: str, edge: int, value: int, limit: int, counted: str) -> None:
        known = f"0 to {limit - 1:,}" if limit else "none"
        super().__init__(
            f"the {end} of edge {edge:,} is {value:,}, but there are {limit:,} {counted} ({known})."
        )
        self.edge, self.value = edge, value


class GraphChangedError(ShorthaulError, RuntimeError):
    """A graph's edges were changed in place after the graph was made."""

    def __init__(self, tensors: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(f'`{each}`' for each in tensors)} of the graph changed in place after the "
            "graph was made, so its indexes would be wrong.\n"
            "  A graph does not change: make another one from the changed tensors."
        )


class GraphFileError(GraphError):
    """A file that holds a graph has a line or a part that cannot be read."""

    def __init__(self, path: str | os.PathLike[str], line: int | None, problem: str) -> None:
        where = f", line {line:,}" if line is not None else ""
        super().__init__(f"{os.fspath(path)}{where}: {problem}")
        self.path, self.line = os.fspath(path), line


class SamplingError(GraphError):
    """Neighbors or mini-batches were asked for with fan-outs, seeds or tables that do not fit."""


class SeedRangeError(SamplingError, IndexError):
    """A seed is not a node of the graph."""

    def __init__(self, seed: int, position: int, num_nodes: int) -> None:
        super().__init__(
            f"seed {seed:,} at position {position:,} is not a node: the graph has {num_nodes:,}, "
            "numbered from 0."
        )
        self.seed, self.position = seed, position


class NoNegativeError(SamplingError):
    """Every pair that could be a negative of an edge is an edge, or there is no pair at all."""

    def __init__(
        self, position: int, source: int, target: int, relation: str, replaced: str
    ) -> None:
        what = {"both": "both ends", "either": "one end"}.get(replaced, f"the {replaced}")
        super().__init__(
            f"there is no negative for edge {position:,}, from node {source:,} to node {target:,} by "
            f"`{relation}`: replacing {what} by any node that may be drawn gives an edge, or no node "
            "may be drawn.\n"
            "  Replace other ends, draw among all nodes of the type, or take true edges too "
            "(avoids=False)."
        )
        self.position = position


class DatabaseError(GraphError):
    """A table cannot become a graph: a column, a key or a value is not what it has to be."""

    def __init__(self, table: str, problem: str) -> None:
        super().__init__(f"table `{table}`: {problem}")
        self.table = table


class ForeignKeyError(DatabaseError):
    """Foreign keys match no primary key, and that was to be an error."""

    def __init__(self, table: str, column: str, other: str, unmatched: int) -> None:
        super().__init__(
            table,
            f"{unmatched:,} values of `{column}` match no primary key of `{other}`.\n"
            "  With strict=False they make no edges, and are counted in `unmatched`.",
        )
        self.unmatched = unmatched
