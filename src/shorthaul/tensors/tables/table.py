"""Rows that lie somewhere: what every table promises, and the one whose rows lie in memory.

>>> table = HostTable(torch.arange(12.0).view(6, 2))
>>> table.gather(torch.tensor([5, 0, -1]))
tensor([[10., 11.],
        [ 0.,  1.],
        [10., 11.]])
>>> table.gather_reduce(torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 4]), "mean")
tensor([[1., 2.],
        [0., 0.],
        [8., 9.]])

A table knows no autograd and no other device than the CPU: `UnifiedTensor` adds both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch

from shorthaul.errors import RowArgumentError
from shorthaul.jit.runtime import alone_after_fork, stay_alone_after_fork
from shorthaul.meter import record_move
from shorthaul.tensors.kernels import host_kernels
from shorthaul.tensors.kernels.host_kernels import plain_ids, require_ids
from shorthaul.tensors.kernels.plain_rows import REDUCTIONS, Reduction
from shorthaul.tensors.kernels.stored_rows import FLOATING, StoredRows

__all__ = [
    "GatherTicket",
    "GatheredRows",
    "HostTable",
    "Kind",
    "RowTable",
    "TableStats",
    "plain_ids",
    "require_ids",
    "require_reducible",
    "require_reduction",
]

Kind = Literal["host", "shared", "disk"]

# Who hears of memory that the host is about to write, and returns when it may: GPUs that read it.
before_writing: list[Callable[[torch.Tensor], None]] = []


@dataclass(frozen=True)
class TableStats:
    """What has been asked of a table since it was made, and what it cost."""

    rows_asked: int = 0  # ids, repeated ones counted each time
    unique_rows: int = 0  # rows looked up, repeated ids of one request counted once
    moved_bytes: int = 0  # stored bytes of the rows that were handed out
    read_bytes: int = 0  # from disk, incl. what alignment and merging added
    hits: int = 0  # unique rows that a cache had
    misses: int = 0  # unique rows that it had not
    saved_bytes: int = 0  # of the hits: what was not read from disk
    waited_seconds: float = 0.0  # for the disk

    @property
    def hit_rate(self) -> float:
        """The share of unique rows that a cache had; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)


class GatherTicket(ABC):
    """Rows on their way; `wait` hands them out, as often as it is asked."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""

    @abstractmethod
    def wait(self) -> torch.Tensor:
        """The rows, or the error that kept them away."""


class GatheredRows(GatherTicket):
    """A ticket for rows that are there already."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    @property
    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> torch.Tensor:
        """The rows."""
        return self._rows


class RowTable(ABC):
    """Rows of one shape and dtype, found by their numbers.

    Ids are CPU tensors of one dimension, int32 or int64; negative ones count from the end. One that
    is out of range is a `RowIndexError`, raised before anything is handed out.
    """

    kind: Kind
    shape: tuple[int, ...]  # (rows, *row_shape), as the user sees it
    dtype: torch.dtype  # as the user sees it; a quantized table stores another
    stored_row_bytes: int

    @abstractmethod
    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows that `ids` name, in that order: a tensor of its own, or `out`."""

    @abstractmethod
    def gather_reduce(
        self,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: Reduction = "sum",
        weights: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One row for each segment `ids[pointers[s]:pointers[s + 1]]`: their sum, mean or maximum.

        With `weights`, one for each id, rows are multiplied first. An empty segment gives zeros, as
        PyG's aggregations do. The result is the same for any number of threads.
        """

    @abstractmethod
    def gather_linear(
        self,
        ids: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`linear(rows, weight, bias)`, without the matrix of gathered rows ever being built."""

    @abstractmethod
    def scatter_(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Write over the rows that `ids` name; of repeated ids the last one wins."""

    @abstractmethod
    def tensor(self) -> torch.Tensor | None:
        """The whole table as a plain tensor that shares its memory; `None` where there is none."""

    @abstractmethod
    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` as a plain tensor; one that shares memory where it can."""

    @abstractmethod
    def prefetch(self, ids: torch.Tensor) -> GatherTicket:
        """Start gathering, and return a ticket for the rows."""

    @property
    def looks_ahead(self) -> bool:
        """Whether it gains from knowing what will be asked of it; only caches do."""
        return False

    @property
    def gains_from_cache(self) -> bool:
        """Whether rows are slow to come and none of them are kept."""
        return False

    def keep_expected(self, budget_bytes: int) -> None:  # noqa: B027
        """Keep, from now on and within that memory, rows that are expected; where it `gains_from_cache`."""

    def expect(self, ids: torch.Tensor) -> None:  # noqa: B027 (most tables have nothing to prepare)
        """A later gather, after those told before, will ask for `ids`."""

    def forget_expected(self) -> None:  # noqa: B027
        """What was expected will not be asked for."""

    @abstractmethod
    def stats(self) -> TableStats:
        """What has been asked so far."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and buffers; what was handed out stays."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.shape[1:]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, {self.shape}, {self.dtype})"


class HostTable(RowTable):
    """Rows in memory that somebody else made: they are shared, never copied, and kept alive."""

    def __init__(
        self,
        values: torch.Tensor,
        *,
        scales: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        kind: Kind = "host",
        memory: HostTable | None = None,
    ) -> None:
        if values.dim() == 0 or values.device.type != "cpu" or values.layout != torch.strided:
            raise RowArgumentError(
                "a table in memory",
                "a plain CPU tensor of one dimension or more",
                f"{values.layout} of shape {tuple(values.shape)} on {values.device}",
            )
        if values.is_conj() or values.is_neg() or values._is_zerotensor():
            raise RowArgumentError(
                "a table in memory",
                "memory that holds the values themselves, as tensor.resolve_conj().resolve_neg() does",
                "a conjugate, negated or zero view",
            )
        _require_scales(values, scales)
        self.kind = kind
        self.memory = memory  # all bytes of the memory that it lies in, if others lie there too
        self.stored = StoredRows(values.detach(), dtype or values.dtype, scales)
        self.shape = tuple(values.shape)
        self.dtype = self.stored.dtype
        self.stored_row_bytes = self.stored.row_bytes
        self._rows_asked = 0

    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows that `ids` name, in that order: a tensor of its own, or `out`."""
        stay_alone_after_fork()
        rows = host_kernels.gather(self.stored, ids, out)
        self.count(ids.shape[0])
        return rows if out is None else out

    @alone_after_fork
    def gather_reduce(
        self,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: Reduction = "sum",
        weights: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One row for each segment of `ids`: the sum, mean or maximum of its rows."""
        require_reduction(self, pointers, ids, op, weights)
        rows = host_kernels.gather_reduce(self.stored, pointers, ids, op, weights, out)
        self.count(len(ids))
        return rows if out is None else out

    @alone_after_fork
    def gather_linear(
        self,
        ids: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`linear(rows, weight, bias)`, without the matrix of gathered rows ever being built."""
        rows = host_kernels.gather_linear(self.stored, ids, weight, bias, out)
        self.count(len(ids))
        return rows if out is None else out

    @alone_after_fork
    def scatter_(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Write over the rows that `ids` name; of repeated ids the last one wins."""
        for tell in before_writing:
            tell(self.stored.values)
        host_kernels.scatter(self.stored, ids, rows)

    def tensor(self) -> torch.Tensor | None:
        """The whole table; `None` when it is quantized."""
        return None if self.stored.is_widened else self.stored.values

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop`: a view, or widened rows when the table is quantized."""
        if not self.stored.is_widened:
            return self.stored.values[start:stop]
        return self.gather(torch.arange(start, stop, dtype=torch.int64, device="cpu"))

    def prefetch(self, ids: torch.Tensor) -> GatherTicket:
        """A ticket for rows that are gathered now."""
        return GatheredRows(self.gather(ids))

    def stats(self) -> TableStats:
        """What has been asked so far."""
        asked = self._rows_asked
        return TableStats(
            rows_asked=asked, unique_rows=asked, moved_bytes=asked * self.stored_row_bytes
        )

    def count(self, rows: int, target: str = "memory") -> None:
        """Note that `rows` rows were read, by the CPU or by the device `target`."""
        self._rows_asked += rows
        record_move("memory", target, rows * self.stored_row_bytes, "rows gathered")

    def close(self) -> None:
        """Nothing to let go of: the memory belongs to the tensor."""


def _require_scales(values: torch.Tensor, scales: torch.Tensor | None) -> None:
    """Kernels read a 32-bit scale for each row, wherever there are scales."""
    if scales is not None and (
        scales.dtype is not torch.float32
        or tuple(scales.shape) != (len(values),)
        or not (scales.is_cpu and scales.is_contiguous())
    ):
        raise RowArgumentError(
            "scales",
            f"{len(values):,} contiguous numbers of torch.float32 on the CPU, one for each row",
            f"{scales.dtype} of shape {tuple(scales.shape)} on {scales.device}",
        )


def require_reduction(
    table: RowTable,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    op: str,
    weights: torch.Tensor | None,
) -> None:
    """Refuse arguments of `gather_reduce` that do not fit together."""
    require_reducible(table, pointers, ids, op, weights)
    is_right = (
        int(pointers[0]) == 0
        and int(pointers[-1]) == len(ids)
        and bool((pointers.diff() >= 0).all())
    )
    if not is_right:
        _refuse_pointers(len(ids), f"{int(pointers[0]):,} to {int(pointers[-1]):,}")


def require_reducible(
    table: RowTable,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    op: str,
    weights: torch.Tensor | None,
) -> None:
    """Refuse what needs no look at the numbers: wherever they lie, nobody waits for them."""
    if op not in REDUCTIONS:
        raise RowArgumentError("op", "one of sum, mean, max", repr(op))
    if table.dtype not in FLOATING:
        raise RowArgumentError("a table that is reduced", "floating-point rows", str(table.dtype))
    require_ids(ids)
    require_ids(pointers)
    if len(pointers) == 0:
        _refuse_pointers(len(ids), "none")
    if weights is not None and (weights.shape != ids.shape or not weights.is_floating_point()):
        raise RowArgumentError(
            "weights",
            f"{len(ids):,} floating-point numbers, one for each id",
            f"{weights.dtype} of shape {tuple(weights.shape)}",
        )


def _refuse_pointers(ids: int, got: str) -> NoReturn:
    raise RowArgumentError("pointers", f"ascending from 0 to the number of ids, {ids:,}", got)
