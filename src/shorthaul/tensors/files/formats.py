"""Where the rows of a table lie in a file: the header is read, the rows are not.

>>> import numpy as np, tempfile
>>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
...     np.save(file, np.zeros((3, 2), np.float32)); file.flush()
...     layout = find_layout(file.name)
>>> layout.offset_bytes, layout.dtype, layout.shape, layout.row_stride_bytes
(128, torch.float32, (3, 2), 8)

Four formats: `.npy`, `.safetensors`, files of `torch.save`, and raw bytes with a dtype and a shape.
Nothing in a file is ever executed: pickles are read with `weights_only=True` and without data.
"""

from __future__ import annotations

import ast
import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shorthaul.errors import MissingTableError, TableFormatError, TableOpenError
from shorthaul.tensors.files.layout import (
    WIDENED_DTYPES,
    WRITE_AGAIN,
    DiskLayout,
    choose_name,
)
from shorthaul.tensors.files.safetensors import find_safetensors_layout

Format = Literal["npy", "safetensors", "torch", "raw"]

SUFFIXES: Mapping[str, Format] = {
    ".npy": "npy",
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".ckpt": "torch",
}
NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
LONGEST_NPY_HEADER_BYTES = 1 << 16

# Those of numpy, which has no bfloat16 and no float8, by `numpy.dtype.str` without byte order.
NPY_DTYPES: Mapping[str, torch.dtype] = {
    "f8": torch.float64,
    "f4": torch.float32,
    "f2": torch.float16,
    "i8": torch.int64,
    "i4": torch.int32,
    "i2": torch.int16,
    "i1": torch.int8,
    "u8": torch.uint64,
    "u4": torch.uint32,
    "u2": torch.uint16,
    "u1": torch.uint8,
    "b1": torch.bool,
    "c8": torch.complex64,
    "c16": torch.complex128,
}


def find_layout(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    shape: Sequence[int] | None = None,
    name: str | None = None,
    offset_bytes: int | None = None,
) -> DiskLayout:
    """Where the rows lie in the file at `path`.

    A raw file needs `dtype` and `shape` (of which the first may be -1: as many rows as there are),
    and may have `offset_bytes` before its first row. `name` chooses one of several tensors in a
    `.safetensors` or `torch.save` file. For the other formats `dtype` and `shape` are checked
    against the file, except that a float32 table may be stored as float16 or bfloat16.
    """
    try:
        resolved = Path(os.path.realpath(path, strict=True))
        _require_regular(resolved)
        with open(resolved, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            chosen = choose_format(
                resolved.suffix, file.read(8), dtype is not None, shape is not None
            )
            if chosen is None:
                raise TableFormatError(
                    path,
                    "its format is not known: it is no .npy, .safetensors or torch.save file",
                    "For raw numbers, say what they are: "
                    "sh.open(path, dtype=torch.float32, shape=(-1, 128)).",
                )
            file.seek(0)
            if chosen == "raw":
                layout = _raw_layout(resolved, size_bytes, dtype, shape, offset_bytes or 0)
            else:
                if offset_bytes is not None:
                    raise TableFormatError(
                        path,
                        f"`offset_bytes` is for raw files, and this is a {chosen} file",
                        "Leave it out: the file's header says where the rows begin.",
                    )
                layout = _READERS[chosen](file, resolved, name)
                layout = _agree(layout, dtype, shape)
    except FileNotFoundError as error:
        raise MissingTableError(path) from error
    except OSError as error:
        raise TableOpenError(path, error.errno or 0) from error
    for each in filter(None, (layout, layout.scales, layout.order)):
        _require_fits(each, size_bytes)
    return layout


def choose_format(
    suffix: str, first_bytes: bytes, has_dtype: bool, has_shape: bool
) -> Format | None:
    """Which format a file has; `None` when nothing tells.

    | suffix               | first bytes    | dtype and shape given | format               |
    | .npy, .safetensors.. | any            | any                   | what the suffix says |
    | other                | any            | both                  | raw                  |
    | other                | of a .npy file | not both              | npy                  |
    | other                | of a zip file  | not both              | torch                |
    | other                | other          | not both              | none                 |
    """
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if has_dtype and has_shape:
        return "raw"
    if first_bytes.startswith(NPY_MAGIC):
        return "npy"
    if first_bytes.startswith(ZIP_MAGIC):
        return "torch"
    return None


def _raw_layout(
    path: Path,
    size_bytes: int,
    dtype: torch.dtype | None,
    shape: Sequence[int] | None,
    offset_bytes: int,
) -> DiskLayout:
    assert dtype is not None and shape is not None  # noqa: PT018  (choose_format saw both)
    sizes = tuple(int(each) for each in shape)
    if not sizes or min(sizes[1:], default=0) < 0 or sizes[0] < -1 or offset_bytes < 0:
        raise TableFormatError(
            path,
            f"a table cannot have shape {sizes} from byte {offset_bytes}",
            "Give (rows, ...), where rows may be -1: as many as the file holds.",
        )
    row_bytes = math.prod(sizes[1:]) * dtype.itemsize
    if sizes[0] == -1:
        rest = size_bytes - offset_bytes
        if row_bytes == 0 or rest < 0 or rest % row_bytes:
            raise TableFormatError(
                path,
                f"{rest:,} bytes from byte {offset_bytes:,} on are no whole number of rows of "
                f"{row_bytes:,} bytes",
                "Check `dtype` and `shape`.",
            )
        sizes = (rest // row_bytes, *sizes[1:])
    return DiskLayout(path, offset_bytes, dtype, sizes, row_bytes)


def _npy_layout(file: BinaryIO, path: Path, name: str | None) -> DiskLayout:
    _require_no_name(path, name, "npy")
    magic = file.read(8)
    if len(magic) < 8 or not magic.startswith(NPY_MAGIC) or magic[6] not in (1, 2, 3):
        raise TableFormatError(path, "it does not begin as a .npy file does", WRITE_AGAIN)
    width = 2 if magic[6] == 1 else 4
    (length,) = struct.unpack("<H" if width == 2 else "<I", file.read(width).ljust(width, b"\0"))
    text = file.read(min(length, LONGEST_NPY_HEADER_BYTES))
    try:
        header = ast.literal_eval(text.decode("utf-8" if magic[6] == 3 else "latin1"))
        order, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        sizes = tuple(int(each) for each in shape)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise TableFormatError(path, "its .npy header cannot be read", WRITE_AGAIN) from error
    dtype = _npy_dtype(path, order)
    if fortran and sum(size > 1 for size in sizes) > 1:
        raise TableFormatError(
            path,
            "it is stored in Fortran order, so that a row's numbers are not side by side",
            "Write it in C order: np.save(path, np.ascontiguousarray(array)), or\n"
            "  sh.save_features(path, np.load(path, mmap_mode='r')) where it is large.",
        )
    return _contiguous_layout(path, 8 + width + length, dtype, sizes)


def _npy_dtype(path: Path, order: object) -> torch.dtype:
    text = order if isinstance(order, str) else ""
    foreign = "<" if np.little_endian is False else ">"
    if text[:1] == foreign and text[2:] != "1":
        raise TableFormatError(
            path,
            f"its numbers ({text}) have the other byte order",
            "Write it again on this machine: sh.save_features(path, array.astype('=f4')).",
        )
    if text.lstrip("<>|=") not in NPY_DTYPES:
        raise TableFormatError(
            path,
            f"it holds {order!r}, which torch has no dtype for",
            "Objects, strings and records are never read; save plain numbers.",
        )
    return NPY_DTYPES[text.lstrip("<>|=")]


def _torch_layout(file: BinaryIO, path: Path, name: str | None) -> DiskLayout:
    records = _torch_records(file, path)
    try:
        # Fake tensors have shapes and places in the file, but no memory: nothing large is read.
        # weights_only builds tensors and plain containers, and refuses to call anything else.
        with FakeTensorMode():
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TableFormatError(
            path,
            f"it holds more than tensors and plain containers, or is damaged ({reason})",
            "Code in data files is never executed. Save the tensor alone: "
            "torch.save(tensor, path).",
        ) from error
    tensors = _named_tensors(content)
    tensor = tensors[choose_name(path, name, tuple(tensors))]
    is_dense = tensor.layout == torch.strided and not tensor.is_quantized
    start = getattr(tensor.untyped_storage(), "_checkpoint_offset", None) if is_dense else None
    size = tensor.dtype.itemsize
    if start not in records:
        raise TableFormatError(
            path, "the tensor's numbers do not lie in the file as they are in memory", WRITE_AGAIN
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TableFormatError(
            path,
            "its tensor is a conjugate or negated view, and the file holds what it is a view of",
            "Save the values: torch.save(tensor.resolve_conj().resolve_neg(), path).",
        )
    inner = math.prod(tensor.shape[1:])
    if tensor.ndim and not (tensor.numel() == 0 or tensor[0].is_contiguous()):
        raise TableFormatError(
            path,
            f"its tensor has strides {tensor.stride()}, so that a row's numbers are not side by side",
            "Save it as torch.save(tensor.contiguous(), path).",
        )
    stride = tensor.stride(0) if tensor.ndim and tensor.shape[0] > 1 else inner
    layout = _contiguous_layout(
        path, start + tensor.storage_offset() * size, tensor.dtype, tuple(tensor.shape)
    )
    return replace(layout, row_stride_bytes=stride * size)


def _torch_records(file: BinaryIO, path: Path) -> set[int]:
    """Where the uncompressed records of a `torch.save` file begin, by its table of contents."""
    starts = set()
    try:
        with zipfile.ZipFile(file) as archive:
            words = [each for each in archive.infolist() if each.filename.endswith("/byteorder")]
            orders = {archive.open(each).read(9) for each in words}  # whatever length they promise
            for each in archive.infolist():
                if each.compress_type == zipfile.ZIP_STORED:
                    file.seek(each.header_offset + 26)  # how long its name and its extra field are
                    starts.add(each.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))))
    except _ZIP_ERRORS as error:
        raise TableFormatError(
            path,
            f"it is not a whole zip file of torch.save ({error})",
            "A file of before torch 1.6 can be converted: "
            "torch.save(torch.load(path, weights_only=True), path).",
        ) from error
    if orders - {b"little"}:
        raise TableFormatError(path, "its numbers have the other byte order", WRITE_AGAIN)
    return starts


def _named_tensors(content: object) -> dict[str, torch.Tensor]:
    """Every tensor in nested plain containers, by its path, such as `layers.0.weight`."""
    if isinstance(content, torch.Tensor):
        return {"": content}
    parts: list[tuple[Any, Any]] = []
    if isinstance(content, Mapping):
        parts = [*content.items()]
    elif isinstance(content, list | tuple):
        parts = [*enumerate(content)]
    return {
        f"{key}.{rest}" if rest else str(key): tensor
        for key, value in parts
        for rest, tensor in _named_tensors(value).items()
    }


def _contiguous_layout(
    path: Path, offset_bytes: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> DiskLayout:
    if not shape or min(shape) < 0:
        raise TableFormatError(
            path, f"it has shape {shape}, and a table has rows", "Save at least one dimension."
        )
    return DiskLayout(path, offset_bytes, dtype, shape, math.prod(shape[1:]) * dtype.itemsize)


def _agree(
    layout: DiskLayout, dtype: torch.dtype | None, shape: Sequence[int] | None
) -> DiskLayout:
    """The layout with what the caller asked for, or an error when the file holds something else."""
    if not layout.shape:
        raise TableFormatError(
            layout.path, "it has no dimension, and a table has rows", "Save at least one dimension."
        )
    if shape is not None:
        wanted = tuple(shape)
        same = len(wanted) == len(layout.shape) and wanted[1:] == layout.shape[1:]
        if not same or wanted[0] not in (-1, layout.shape[0]):
            raise TableFormatError(
                layout.path,
                f"it has shape {layout.shape}, and {wanted} was asked for",
                "Leave `shape` out: the file's header has it.",
            )
    if dtype is None or dtype == layout.dtype:
        return layout
    if layout.dtype not in WIDENED_DTYPES or dtype != torch.float32:
        raise TableFormatError(
            layout.path,
            f"it holds {layout.dtype}, and {dtype} was asked for",
            "Leave `dtype` out and convert the rows: u[ids].to(dtype).",
        )
    return replace(layout, dtype=dtype, stored_dtype=layout.dtype)


def _require_regular(path: Path) -> None:
    """Refuse a pipe or a device before it is opened: that may wait forever."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a directory is an error of its own
        raise TableFormatError(
            path,
            "it is a pipe, a socket or a device, and rows are read at any place of a file",
            "Copy what it gives into a file first.",
        )


def _require_no_name(path: Path, name: str | None, kind: str) -> None:
    if name is not None:
        raise TableFormatError(
            path, f"a .{kind} file holds one table, and {name!r} was asked for", "Leave `name` out."
        )


def _require_fits(layout: DiskLayout, size_bytes: int) -> None:
    if layout.stop_bytes > size_bytes:
        raise TableFormatError(
            layout.path,
            f"it is cut short: {layout.shape[0]:,} rows end at byte {layout.stop_bytes:,}, and the "
            f"file has {size_bytes:,} bytes",
            "Copy or write it again.",
        )


_ZIP_ERRORS = zipfile.BadZipFile, struct.error, zlib.error, EOFError, RuntimeError, ValueError
_READERS = {"npy": _npy_layout, "safetensors": find_safetensors_layout, "torch": _torch_layout}
