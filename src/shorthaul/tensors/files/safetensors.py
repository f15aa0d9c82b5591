"""Tables in .safetensors files, which can say more of their rows than other formats: quantized, or reordered."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from shorthaul.errors import TableFormatError
from shorthaul.tensors.files.layout import (
    WIDENED_DTYPES,
    WRITE_AGAIN,
    DiskLayout,
    choose_name,
)
from shorthaul.tensors.kernels.stored_rows import FLOATING

LONGEST_SAFETENSORS_HEADER_BYTES = 100 << 20  # what the format's own reader allows
# The dtypes that a table may have, by the names of safetensors.
SAFETENSORS_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}
# Tensor names and the metadata key of a quantized table in a .safetensors file.
ROWS_NAME, SCALES_NAME, SEEN_DTYPE_KEY = "rows", "scales", "shorthaul.seen_dtype"
# Of a reordered one: no reader that does not know the order shall take its rows for those of the table.
REORDERED_NAME, ORDER_NAME, ORDER_KEY = "reordered_rows", "order", "shorthaul.order"


def find_safetensors_layout(file: BinaryIO, path: Path, name: str | None) -> DiskLayout:
    """Where the rows lie, by the header of the file."""
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= LONGEST_SAFETENSORS_HEADER_BYTES:
        raise TableFormatError(path, "it does not begin as a .safetensors file does", WRITE_AGAIN)
    try:
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        entries = {
            key: _safetensors_entry(path, 8 + length, key, entry) for key, entry in header.items()
        }
        seen = SAFETENSORS_DTYPES[metadata[SEEN_DTYPE_KEY]] if SEEN_DTYPE_KEY in metadata else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, TableFormatError):
            raise
        raise TableFormatError(
            path, "its .safetensors header cannot be read", WRITE_AGAIN
        ) from error
    is_reordered = metadata.get(ORDER_KEY) == ORDER_NAME
    rows_name = REORDERED_NAME if is_reordered else ROWS_NAME
    is_ours = seen is not None or is_reordered
    if not is_ours or name not in (None, ROWS_NAME, rows_name) or rows_name not in entries:
        return entries[choose_name(path, name, tuple(entries))]
    layout, scales = entries[rows_name], entries.get(SCALES_NAME)
    if is_reordered:
        order = entries.get(ORDER_NAME)
        _require_order(layout, order)
        layout = replace(layout, order=order)
    if seen is not None:
        _require_quantized(layout, seen, scales)
        layout = replace(layout, dtype=seen, stored_dtype=layout.dtype, scales=scales)
    return layout


def _require_order(rows: DiskLayout, order: DiskLayout | None) -> None:
    """Refuse an order that cannot be one of these rows."""
    if (
        order is None
        or order.dtype is not torch.int64
        or len(order.shape) != 1
        or not rows.shape
        or order.shape[0] > rows.shape[0]
    ):
        found = "none" if order is None else f"{order.dtype} {order.shape}"
        raise TableFormatError(
            rows.path,
            f"its rows {rows.shape} are said to be reordered, and the order is {found}: one is "
            "torch.int64 of one dimension, no longer than there are rows",
            WRITE_AGAIN,
        )


def _require_quantized(rows: DiskLayout, seen: torch.dtype, scales: DiskLayout | None) -> None:
    """Refuse a table that is said to be quantized and is not stored as one."""
    is_table = rows.dtype in (*WIDENED_DTYPES, torch.int8, seen) and seen in FLOATING
    is_table &= (scales is not None) is (rows.dtype is torch.int8)
    if scales is not None:
        is_table &= scales.dtype is torch.float32 and scales.shape == rows.shape[:1]
    if not is_table:
        scales_text = "no scales" if scales is None else f"scales {scales.dtype} {scales.shape}"
        raise TableFormatError(
            rows.path,
            f"rows of {rows.dtype} {rows.shape} with {scales_text}, seen as {seen}, are no "
            "quantized table: one is float16 or bfloat16 without scales, or int8 with a "
            "torch.float32 scale for each row",
            "Write it again: sh.save_features(path, tensor, quantize=...).",
        )


def _safetensors_entry(path: Path, start_bytes: int, key: str, entry: Any) -> DiskLayout:
    first, stop = entry["data_offsets"]
    if entry["dtype"] not in SAFETENSORS_DTYPES:
        raise TableFormatError(
            path, f"tensor {key!r} holds {entry['dtype']}, which is not read", WRITE_AGAIN
        )
    dtype = SAFETENSORS_DTYPES[entry["dtype"]]
    shape = tuple(int(each) for each in entry["shape"])
    if min(shape, default=0) < 0 or first < 0 or math.prod(shape) * dtype.itemsize != stop - first:
        raise TableFormatError(
            path, f"the header's offsets of tensor {key!r} contradict its shape", WRITE_AGAIN
        )
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    return DiskLayout(path, start_bytes + int(first), dtype, shape, row_bytes)
