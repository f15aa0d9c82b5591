"""Large tables written piece by piece, so that they can be read row by row.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     saved = save_features(f"{folder}/x.npy", (torch.full((2, 3), float(i)) for i in range(4)))
...     saved.shape, saved.file_bytes, np.load(saved.path)[:, 0].tolist()
((8, 3), 4192, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0])

Rows begin at byte 4096, where direct reads like them. The file appears under its name when it is
whole and on the disk: until then it has another name, and on an error it is removed.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from shorthaul.dtypes import parse_dtype
from shorthaul.errors import TableFormatError, UnifiedSourceError
from shorthaul.jit.held_values import held_values
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.storage import StorageEngine
from shorthaul.tensors.files.file_writer import FileWriter, engine_for_files
from shorthaul.tensors.files.formats import NPY_DTYPES, NPY_MAGIC, SUFFIXES
from shorthaul.tensors.files.safetensors import (
    ORDER_KEY,
    ORDER_NAME,
    REORDERED_NAME,
    ROWS_NAME,
    SAFETENSORS_DTYPES,
    SCALES_NAME,
    SEEN_DTYPE_KEY,
)
from shorthaul.tensors.progress_bar import progress_bar
from shorthaul.tensors.reordering import read_order, reorder
from shorthaul.tensors.tables.quantized import Quantization, QuantizedRows, quantize_rows
from shorthaul.tensors.unified_tensor import UnifiedTensor
from shorthaul.units import parse_bytes

HEADER_BYTES = 4096


@dataclass(frozen=True)
class SavedTable:
    """What `save_features` wrote."""

    path: Path  # of the file
    shape: tuple[int, ...]  # of the table
    dtype: torch.dtype  # what a reader sees
    stored_dtype: torch.dtype  # what the file holds
    file_bytes: int  # its size
    largest_error: float  # of a quantized value, against what was given; 0 when nothing was lost


@outside_graphs
@alone_after_fork
def save_features(
    path: str | os.PathLike[str],
    source: Any,
    *,
    dtype: torch.dtype | str | None = None,
    quantize: Quantization | None = None,
    order: Any = None,
    rows: int | None = None,
    chunk_bytes: int | str = "16MiB",
    progress: bool = True,
    engine: StorageEngine | None = None,
) -> SavedTable:
    """Write a table of rows to `path`, chunk by chunk: memory holds only a few of them at a time.

    Args:
        path: Its suffix chooses the format: `.npy`, `.safetensors`, anything else raw.
        source: A tensor, a unified tensor on disk, an array or `np.memmap`, or an iterable of
            chunks of rows.
        dtype: What the rows are converted to; None (default) leaves them as they are.
        quantize: `"float16"`, `"bfloat16"` or `"int8"` with a scale per row, in `.safetensors`
            only: it can say what it holds. None by default.
        order: Ids of rows that lie together at the beginning, those read most often first; the others
            follow as they were. Ids mean what they meant. In `.safetensors` only, and not for an
            iterable. None (default) leaves rows where they are.
        rows: How many there will be, for the progress bar of an iterable; None (default) where it
            is not known.
        chunk_bytes: Rows are written in chunks of this size (default `"16MiB"`).
        progress: Whether a bar shows the progress of a long write (default True).
        engine: Writes the rows; None (default) takes one that all tables share.
    """
    target = Path(path)
    kind = _choose_kind(target, quantize, is_reordered=order is not None)
    step_bytes = max(HEADER_BYTES, parse_bytes(chunk_bytes) // HEADER_BYTES * HEADER_BYTES)
    chunks, known_rows = _chunks_of(source, step_bytes)
    first: torch.Tensor | None = None
    if order is not None:
        first = read_order(order, source, known_rows)
        chunks = reorder(source, first, step_bytes)
    with (
        engine_for_files(engine) as chosen,
        FileWriter(target, chosen, step_bytes, 0 if kind == "raw" else HEADER_BYTES) as writer,
    ):
        seen = None if dtype is None else parse_dtype(dtype)
        table = _Rows(target, kind, seen, quantize, first)
        with progress_bar(target.name, progress) as bar:
            for number, chunk in enumerate(chunks):
                values = table.take(number, chunk)
                if number == 0:
                    table.require_storable()
                writer.append(values)
                bar.update(len(values), values.nbytes, known_rows or rows)
        header, tail = table.finish()
        for each in tail:
            writer.append(each)
        file_bytes = writer.finish(header)
    return SavedTable(
        target, table.shape, table.seen, table.stored, file_bytes, table.largest_error
    )


class _Rows:
    """What the chunks turned out to be: dtype, shape, scales, and the header that says so."""

    def __init__(
        self,
        path: Path,
        kind: str,
        dtype: torch.dtype | None,
        quantize: Quantization | None,
        first: torch.Tensor | None,
    ) -> None:
        self.path, self.kind, self.wanted, self.quantize = path, kind, dtype, quantize
        self.first = first  # ids of the rows that come first, where rows are reordered
        self.row_shape: tuple[int, ...] | None = None
        self.rows = 0
        self.largest_error = 0.0
        self._scales: list[torch.Tensor] = []

    def take(self, number: int, chunk: Any) -> torch.Tensor:
        """The stored values of one chunk, contiguous."""
        values = _as_tensor(chunk, number)
        if self.row_shape is None:
            self.row_shape, self.seen = tuple(values.shape[1:]), self.wanted or values.dtype
        if tuple(values.shape[1:]) != self.row_shape or (
            self.wanted is None and values.dtype != self.seen
        ):
            raise UnifiedSourceError(
                "sh.save_features",
                f"chunks of rows of shape {self.row_shape} and {self.seen}, as the first was",
                f"{values.dtype} of shape {tuple(values.shape)} as chunk {number}",
                "Give `dtype=` to convert them all.",
            )
        first_row, self.rows = self.rows, self.rows + len(values)
        values = values.to(self.seen).contiguous()
        if self.quantize is None or len(values) == 0:
            self.stored = getattr(torch, self.quantize or "", self.seen)
            return values
        packed: QuantizedRows = quantize_rows(values, self.quantize, first_row=first_row)
        self.stored = packed.values.dtype
        self.largest_error = max(self.largest_error, packed.report().largest_error)
        if packed.scales is not None:
            self._scales.append(packed.scales)
        return packed.values.contiguous()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole table, so far."""
        return (self.rows, *(self.row_shape or ()))

    def require_storable(self) -> None:
        """Refuse, before anything is written, a dtype that the format cannot say."""
        if self.kind == "npy":
            npy_header(self.path, self.shape, self.stored)
        elif self.kind == "safetensors":
            safetensors_header(self.path, self.shape, self.stored, None, {})

    def finish(self) -> tuple[bytes, list[torch.Tensor]]:
        """The header, and what follows the rows."""
        if self.row_shape is None:
            raise UnifiedSourceError(
                "sh.save_features",
                "at least one chunk",
                "none",
                "A table without rows is a chunk of shape (0, ...).",
            )
        if self.kind == "npy":
            return npy_header(self.path, self.shape, self.stored), []
        scales = (
            torch.cat([torch.empty(0, dtype=torch.float32, device="cpu"), *self._scales])
            if self.quantize == "int8"
            else None
        )
        if self.kind == "safetensors":
            seen = self.seen if self.quantize is not None else None
            beside = {SCALES_NAME: scales, ORDER_NAME: self.first}
            tail = {name: each for name, each in beside.items() if each is not None}
            header = safetensors_header(self.path, self.shape, self.stored, seen, tail)
            return header, [*tail.values()]
        return b"", []


def npy_header(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    """A .npy header of 4096 bytes, which every reader of the format takes.

    >>> npy_header(Path("x.npy"), (3, 2), torch.float32)[:6], len(npy_header(Path(), (1,), torch.int8))
    (b'\\x93NUMPY', 4096)
    """
    names = {each: name for name, each in NPY_DTYPES.items()}
    if dtype not in names:
        remedy = "Use the suffix .safetensors, or give `dtype=`."
        raise TableFormatError(path, f"the .npy format has no {dtype}", remedy)
    order = "|" if dtype.itemsize == 1 else np.dtype(np.int16).str[0].replace("=", "<")
    described = {"descr": order + names[dtype], "fortran_order": False, "shape": shape}
    text = str(described).encode("latin1")
    length = HEADER_BYTES - 10
    return NPY_MAGIC + b"\x01\x00" + struct.pack("<H", length) + text.ljust(length - 1) + b"\n"


def safetensors_header(
    path: Path,
    shape: tuple[int, ...],
    stored: torch.dtype,
    seen: torch.dtype | None,
    tail: Mapping[str, torch.Tensor],
) -> bytes:
    """A .safetensors header of 4096 bytes, for one table with what follows its rows: scales, an order."""
    names = {each: name for name, each in SAFETENSORS_DTYPES.items()}
    if stored not in names:
        remedy = "Use the suffix .npy, or give `dtype=`."
        raise TableFormatError(path, f"the .safetensors format has no {stored}", remedy)
    stop = math.prod(shape) * stored.itemsize
    rows_name = REORDERED_NAME if ORDER_NAME in tail else ROWS_NAME
    entries: dict[str, Any] = {
        rows_name: {"dtype": names[stored], "shape": list(shape), "data_offsets": [0, stop]}
    }
    for name, each in tail.items():
        offsets, stop = [stop, stop + each.nbytes], stop + each.nbytes
        entries[name] = {
            "dtype": names[each.dtype],
            "shape": [*each.shape],
            "data_offsets": offsets,
        }
    metadata = {SEEN_DTYPE_KEY: names[seen]} if seen is not None else {}
    if ORDER_NAME in tail:
        metadata[ORDER_KEY] = ORDER_NAME
    if metadata:
        entries["__metadata__"] = metadata
    length = HEADER_BYTES - 8
    return struct.pack("<Q", length) + json.dumps(entries).encode().ljust(length)


def _choose_kind(
    path: Path, quantize: str | None, *, is_reordered: bool
) -> Literal["npy", "safetensors", "raw"]:
    kind = SUFFIXES.get(path.suffix, "raw")
    if kind == "torch":
        raise TableFormatError(
            path, "torch.save files are read, not written", "Use .npy, .safetensors or .bin."
        )
    if (quantize is not None or is_reordered) and kind != "safetensors":
        what = "quantized" if quantize is not None else "reordered"
        raise TableFormatError(
            path,
            f"a {path.suffix or 'raw'} file cannot say that its rows are {what}",
            "Use the suffix .safetensors.",
        )
    return kind


def _chunks_of(source: Any, step_bytes: int) -> tuple[Iterator[Any], int | None]:
    """The source in chunks, and how many rows it has where that is known."""
    if isinstance(source, UnifiedTensor) and not source.has_memory:
        row_bytes = max(1, source.table.stored_row_bytes)
        return source.chunks(max(1, step_bytes // row_bytes)), source.shape[0]
    if isinstance(source, torch.Tensor | np.ndarray):
        if source.ndim == 0:
            raise UnifiedSourceError("sh.save_features", "rows", "a single number")
        rows = int(source.shape[0])
        row_bytes = math.prod(source.shape[1:]) * source.dtype.itemsize
        step = max(1, step_bytes // max(1, row_bytes))
        parts = (source[start : start + step] for start in range(0, max(1, rows), step))
        return parts, rows
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | dict):
        return iter(source), None
    raise UnifiedSourceError(
        "sh.save_features",
        "a tensor, an array or chunks of rows",
        f"{type(source).__module__}.{type(source).__qualname__}",
    )


def _as_tensor(chunk: Any, number: int) -> torch.Tensor:
    if isinstance(chunk, np.ndarray):
        chunk = torch.from_numpy(np.require(chunk, requirements=["C", "W"]))
    if not isinstance(chunk, torch.Tensor) or chunk.dim() == 0:
        raise UnifiedSourceError(
            "sh.save_features",
            "rows in each chunk",
            f"{type(chunk).__qualname__} as chunk {number}",
        )
    return held_values(chunk.detach().cpu(), f"chunk {number}")
