"""The columns of a saved graph: numbers are checked as they come from a file, whoever reads them.

A file is input. What lies in memory was checked once; what stays on disk can change, and was never
looked at as a whole. So no number of a column reaches a kernel, which would take it for an address,
before it is known to be an id that the graph has, or an end of a row that the index has.

Ids in range may still be wrong ones: a column that is read into memory as a whole must also have the
checksum that it was saved with. (Reading all of what stays on disk would be reading it into memory.)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from shorthaul.errors import GraphFileError
from shorthaul.graphs.edge_tensors import choose_builder
from shorthaul.graphs.index.indexes import PairIndex, RelationIndex
from shorthaul.graphs.node_names import NodeNames
from shorthaul.tensors.files.formats import find_layout
from shorthaul.tensors.files.layout import DiskLayout
from shorthaul.tensors.files.mapping import map_rows
from shorthaul.tensors.tables.disk.disk_table import DiskTable
from shorthaul.tensors.tables.table import GatherTicket, plain_ids
from shorthaul.tensors.unified_tensor import Traits, UnifiedTensor

_SUMMED_NUMBERS = 2**22  # of a column, added to its checksum at a time
_LOOKED_AT_NUMBERS = 2**22  # of a column that is mapped


@dataclass(frozen=True)
class ColumnRule:
    """What the numbers of a column are, and how many there are of what they count.

    `ids` are below `count`; `each id once` are, read as a whole, all of them; `row ends` ascend from
    0 to `count`; `anything` is not looked at.
    """

    kind: Literal["ids", "each id once", "row ends", "anything"]
    count: int
    counted: str  # in the plural, for errors

    @property
    def limit(self) -> int:
        """What all numbers are below."""
        return self.count + (self.kind == "row ends")


class GraphColumn(DiskTable):
    """A vector of whole numbers in a file, of which only those that fit its rule are handed out."""

    def __init__(self, layout: DiskLayout, rule: ColumnRule, checksum: int | None = None) -> None:
        super().__init__(layout)
        self.rule, self.checksum = rule, checksum

    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The numbers at `ids`; `GraphFileError` where one does not fit."""
        numbers = super().gather(ids, out)
        self.require_fitting(ids, numbers)
        return numbers

    def prefetch(self, ids: torch.Tensor) -> GatherTicket:
        """Start reading; the numbers are checked when they are handed out."""
        return _CheckedTicket(self, ids, super().prefetch(ids))

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The numbers from `start` to `stop`; all of them must have the column's checksum."""
        numbers = super().read(start, stop)
        places = torch.arange(start, start + len(numbers), dtype=torch.int64, device="cpu")
        self.require_fitting(places, numbers)
        if len(numbers) == self.rows:
            self._require_whole(numbers)
        return numbers

    def look_through(self) -> None:
        """Read all numbers once, a part at a time, and keep none; raise where one does not fit."""
        for start in range(0, self.rows, _LOOKED_AT_NUMBERS):
            # With the first of the next part: ends ascend from part to part, too.
            self.read(start, min(start + _LOOKED_AT_NUMBERS + 1, self.rows))

    def require_fitting(self, ids: torch.Tensor, numbers: torch.Tensor) -> None:
        """Raise unless `numbers`, which were read at `ids`, are what the rule says."""
        if self.rule.kind == "anything":
            return
        position = choose_builder(numbers).find_outside(numbers.contiguous(), self.rule.limit)
        if position is not None:
            at, value = int(plain_ids(ids, self.rows)[position]), int(numbers[position])
            known = f"0 to {self.rule.limit - 1:,}" if self.rule.limit else "none"
            raise self._error(
                f"number {at:,} is {value:,}, but there are {self._counted()} ({known})"
            )
        if self.rule.kind == "row ends":
            self._require_ascending(plain_ids(ids, self.rows).long(), numbers)

    def _require_ascending(self, places: torch.Tensor, ends: torch.Tensor) -> None:
        # Neighbors in one request: the begin and the end of a row are, and all numbers of a slice.
        turns = torch.nonzero(places.diff().sign() * ends.diff().sign() < 0)
        if len(turns):
            first = int(turns[0])
            one, other = sorted(places[first : first + 2].tolist())
            raise self._error(f"numbers {one:,} and {other:,} do not ascend")
        for place, expected in ((0, 0), (self.rows - 1, self.rule.count)):
            wrong = torch.nonzero((places == place) & (ends != expected))
            if len(wrong):
                raise self._error(
                    f"number {place:,} must be {expected:,} and is {int(ends[int(wrong[0])]):,}: "
                    f"there are {self._counted()}"
                )

    def _require_whole(self, numbers: torch.Tensor) -> None:
        if self.rule.kind == "each id once":
            seen = torch.zeros(self.rule.count, dtype=torch.bool, device="cpu")
            seen[numbers.long()] = True
            missing = torch.nonzero(~seen)
            if len(missing):
                raise self._error(
                    f"there are {self._counted()}, each of them once, but {int(missing[0]):,} is not "
                    "among them"
                )
        if self.checksum is not None:
            found: list[int] = []
            for _ in sum_up([numbers], found):
                pass
            if found != [self.checksum]:
                raise self._error(
                    f"its numbers have the checksum {found[0]:#010x}, and {self.checksum:#010x} when "
                    "they were saved"
                )

    def _counted(self) -> str:
        return f"{self.rule.count:,} {self.rule.counted}"

    def _error(self, problem: str) -> GraphFileError:
        return GraphFileError(
            self.layout.path,
            None,
            f"{problem}.\n  The file is damaged, or not of this graph: save the graph again.",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphColumn, (self.layout, self.rule, self.checksum)


class _CheckedTicket(GatherTicket):
    """Numbers on their way, checked when they are there."""

    def __init__(self, column: GraphColumn, ids: torch.Tensor, ticket: GatherTicket) -> None:
        self._column, self._ids, self._ticket = column, ids, ticket

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._ticket.done

    def wait(self) -> torch.Tensor:
        """The numbers, or the error that kept them away."""
        numbers = self._ticket.wait()
        self._column.require_fitting(self._ids, numbers)
        return numbers


@dataclass(frozen=True)
class SavedColumns:
    """Opens the columns of one saved graph as what they must hold."""

    folder: Path
    dtype: torch.dtype
    nodes: int
    relations: int
    edges: int
    checksums: Mapping[str, int]  # by the name of the column
    kinds: Mapping[str, str]  # likewise, of data: their bytes may be read as other numbers, too
    in_memory: bool
    is_mapped: bool = False  # indexes are memory that is mapped: looked at once, now

    def open_edges(self, name: str) -> torch.Tensor:
        """`source`, `target` or `relation`."""
        return self._open(name, *self._expect(name, 0))

    def open_index(self, kind: type, prefix: str, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The columns of an index, whose files begin with `prefix`."""
        # How many pairs there are is said nowhere else.
        pairs = self._find(f"{prefix}.nodes", self.dtype).shape[0] if kind is PairIndex else 0
        found = {}
        for name in names:
            length, rule = self._expect(name, pairs)
            if name == "pointers":
                rows = self.relations if kind in (RelationIndex, PairIndex) else self.nodes
                into = (pairs, "pairs") if kind is PairIndex else (self.edges, "edges")
                length, rule = rows + 1, ColumnRule("row ends", *into)
            found[name] = self._open(f"{prefix}.{name}", length, rule, is_mapped=self.is_mapped)
        return found

    def open_names(self) -> NodeNames:
        """The names of the nodes."""
        size = self._find("node_names.text", torch.uint8).shape[0]
        text = self._open("node_names.text", size, ColumnRule("anything", 256, ""), torch.uint8)
        ends = ColumnRule("row ends", size, "bytes of names")
        return NodeNames(text, self._open("node_names.offsets", self.nodes + 1, ends, torch.int64))

    def open_data(self, name: str, rows: int | None = None) -> torch.Tensor:
        """Data of nodes or edges: rows of any shape and type, on disk or read whole."""
        layout = find_layout(self.folder / f"{name}.npy")
        if rows is not None and (not layout.shape or layout.shape[0] != rows):
            raise GraphFileError(
                layout.path,
                None,
                f"expected {rows:,} rows, as graph.json says, got {layout.shape}.",
            )
        kind = describe_kind(layout)
        if kind != self.kinds.get(name, kind):
            raise GraphFileError(
                layout.path, None, f"expected {self.kinds[name]}, as graph.json says, got {kind}."
            )
        table = DiskTable(layout)
        if not self.in_memory:
            return UnifiedTensor.of_table(table, Traits(is_read_only=True))
        with table:
            values = table.read(0, table.rows)
        found: list[int] = []
        for _ in sum_up([values], found):
            pass
        if found != [self.checksums.get(name, found[0])]:
            raise GraphFileError(
                layout.path,
                None,
                f"its rows have the checksum {found[0]:#010x}, and {self.checksums[name]:#010x} when "
                "they were saved.\n  The file is damaged, or not of this graph: save the graph again.",
            )
        return values

    def _expect(self, name: str, pairs: int) -> tuple[int, ColumnRule]:
        """How long a column is and what its numbers are."""
        nodes = ColumnRule("ids", self.nodes, "nodes")
        relations = ColumnRule("ids", self.relations, "relations")
        if name in ("relation", "relations"):
            return self.edges, relations
        if name in ("edges", "pair_edges"):
            return self.edges, ColumnRule("each id once", self.edges, "edges")
        if name == "edge_to_pair":
            return self.edges, ColumnRule("ids", pairs, "pairs")
        if name == "pair_pointers":
            return pairs + 1, ColumnRule("row ends", self.edges, "edges")
        return (pairs if name == "nodes" else self.edges), nodes

    def _open(
        self,
        name: str,
        length: int,
        rule: ColumnRule,
        dtype: torch.dtype | None = None,
        *,
        is_mapped: bool = False,
    ) -> torch.Tensor:
        layout = self._find(name, dtype or self.dtype)
        if layout.shape[0] != length:
            raise GraphFileError(
                layout.path,
                None,
                f"expected {length:,} numbers, as graph.json says, got {layout.shape[0]:,}.",
            )
        column = GraphColumn(layout, rule, self.checksums.get(name))
        if is_mapped:
            with column:
                column.look_through()
            return map_rows(layout, is_random=True)
        if not self.in_memory:
            return UnifiedTensor.of_table(column, Traits(is_read_only=True, is_for_host=True))
        with column:
            return column.read(0, length)

    def _find(self, name: str, dtype: torch.dtype) -> DiskLayout:
        layout = find_layout(self.folder / f"{name}.npy")
        if layout.dtype is not dtype or len(layout.shape) != 1:
            raise GraphFileError(
                layout.path,
                None,
                f"expected a vector of {dtype}, got {layout.dtype} of shape {layout.shape}.",
            )
        return layout


def describe_kind(layout: DiskLayout) -> str:
    """What the rows of a file are, in the words of graph.json: "torch.float32 [5, 2]"."""
    return f"{layout.dtype} {list(layout.shape)}"


def sum_up(parts: Iterable[torch.Tensor], found: list[int]) -> Iterator[torch.Tensor]:
    """The vectors `parts` as they are; at the end `found` gets the checksum of all their numbers."""
    checksum = 0
    for part in parts:
        for piece in torch.split(part, _SUMMED_NUMBERS):
            checksum = zlib.crc32(piece.contiguous().numpy().data, checksum)
            yield piece
    found.append(checksum)
