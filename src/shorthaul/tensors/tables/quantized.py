"""Rows in fewer bytes: float16, bfloat16, or int8 with a scale for each row.

>>> table = quantize(torch.tensor([[1.0, -2.0], [0.0, 0.5]]), "int8")
>>> table.gather(torch.tensor([0, 1]))
tensor([[ 1.0079, -2.0000],
        [ 0.0000,  0.5000]])
>>> table.report
QuantizationReport(kind='int8', before_bytes=16, after_bytes=12, largest_error=0.0079, mean_error=0.0020)

The user sees float32; the kernels widen each value as they read it, so that only the stored bytes
travel. A value times its scale is one rounding; the reports say what was lost when storing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from shorthaul.errors import RowArgumentError
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.tensors.kernels.stored_rows import FLOATING
from shorthaul.tensors.tables.table import HostTable, RowTable

Quantization = Literal["float16", "bfloat16", "int8"]
QUANTIZATIONS: tuple[Quantization, ...] = ("float16", "bfloat16", "int8")
_LARGEST_INT8 = 127
_CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class QuantizationReport:
    """What quantizing saved and what it cost."""

    kind: Quantization
    before_bytes: int
    after_bytes: int  # with the scales
    largest_error: float  # of any value, absolute
    mean_error: float

    def __repr__(self) -> str:
        return (
            f"QuantizationReport(kind={self.kind!r}, before_bytes={self.before_bytes}, "
            f"after_bytes={self.after_bytes}, largest_error={self.largest_error:.4f}, "
            f"mean_error={self.mean_error:.4f})"
        )


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Some rows as they are stored, and what they were made from."""

    kind: Quantization
    values: torch.Tensor
    scales: torch.Tensor | None
    source: torch.Tensor

    def widened(self) -> torch.Tensor:
        """What the user will see of them."""
        values = self.values.float()
        return values if self.scales is None else values * _beside(self.scales, values)

    def report(self) -> QuantizationReport:
        """Bytes before and after, and the errors."""
        errors = (self.widened() - self.source.float()).abs()
        scale_bytes = 0 if self.scales is None else self.scales.nbytes
        return QuantizationReport(
            self.kind,
            self.source.nbytes,
            self.values.nbytes + scale_bytes,
            float(errors.max()) if errors.numel() else 0.0,
            float(errors.mean()) if errors.numel() else 0.0,
        )


class QuantizedTable(HostTable):
    """A table in memory whose rows are stored in fewer bytes than the user sees."""

    def __init__(
        self, values: torch.Tensor, scales: torch.Tensor | None, report: QuantizationReport
    ) -> None:
        super().__init__(values, scales=scales, dtype=torch.float32)
        self.report = report


@outside_graphs
def quantize(source: RowTable | torch.Tensor, kind: Quantization) -> QuantizedTable:
    """A copy of a table, or tensor of rows, in memory and in fewer bytes.

    Works on chunks of rows, so a table on disk that is larger than memory may become one in memory.

    Args:
        source: A table, or a tensor of rows.
        kind: `"float16"`, `"bfloat16"` or `"int8"` with a scale per row.
    """
    table = source if isinstance(source, RowTable) else HostTable(source)
    stored = getattr(torch, _require_kind(kind))
    values = torch.empty(table.shape, dtype=stored, device="cpu")
    scales = torch.empty(table.rows, dtype=torch.float32, device="cpu") if kind == "int8" else None
    largest, total, before_bytes = 0.0, 0.0, 0
    for start, stop in _chunks(table):
        part = quantize_rows(table.read(start, stop), kind, first_row=start)
        values[start:stop] = part.values
        if scales is not None and part.scales is not None:
            scales[start:stop] = part.scales
        report = part.report()
        largest = max(largest, report.largest_error)
        total += report.mean_error * part.values.numel()
        before_bytes += report.before_bytes
    after_bytes = values.nbytes + (0 if scales is None else scales.nbytes)
    mean = total / max(1, values.numel())
    return QuantizedTable(
        values, scales, QuantizationReport(kind, before_bytes, after_bytes, largest, mean)
    )


def quantize_rows(rows: torch.Tensor, kind: Quantization, *, first_row: int = 0) -> QuantizedRows:
    """Some rows quantized; `first_row` is the number of the first, for errors that name a row."""
    _require_kind(kind)
    if rows.dtype not in FLOATING:
        raise RowArgumentError(
            "a table that is quantized", "of floating-point rows", str(rows.dtype)
        )
    if kind != "int8":
        values = rows.to(getattr(torch, kind))
        _require_finite(values, kind, first_row)
        return QuantizedRows(kind, values, None, rows)
    wide = rows.float()
    _require_finite(wide, kind, first_row)
    flat = wide.reshape(len(rows), rows.shape[1:].numel())
    largest = (
        flat.abs().amax(1)
        if flat.shape[1]
        else torch.zeros(len(rows), dtype=torch.float32, device="cpu")
    )
    scales = largest / _LARGEST_INT8
    # A row of zeros has scale 0; dividing by 1 instead leaves its zeros.
    divisors = torch.where(scales == 0, 1.0, scales)
    steps = (wide / _beside(divisors, wide)).round_().clamp_(-_LARGEST_INT8, _LARGEST_INT8)
    return QuantizedRows(kind, steps.to(torch.int8), scales, rows)


def _beside(scales: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`scales` shaped so that each meets its row."""
    return scales.view(-1, *[1] * (values.dim() - 1))


def _chunks(table: RowTable) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK_BYTES // max(1, table.stored_row_bytes))
    for start in range(0, table.rows, step):
        yield start, min(table.rows, start + step)


def _require_kind(kind: str) -> str:
    if kind not in QUANTIZATIONS:
        raise RowArgumentError("quantization", f"one of {', '.join(QUANTIZATIONS)}", repr(kind))
    return kind


def _require_finite(values: torch.Tensor, kind: str, first_row: int) -> None:
    is_finite = values.isfinite().reshape(len(values), values.shape[1:].numel()).all(1)
    if not is_finite.all():
        row = first_row + int((~is_finite).nonzero()[0, 0])
        raise RowArgumentError(
            f"row {row:,}",
            f"finite numbers that {kind} can hold",
            "an infinity, a NaN, or too much",
        )
