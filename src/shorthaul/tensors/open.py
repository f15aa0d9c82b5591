"""Tables on disk, opened without being read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from shorthaul.dtypes import parse_dtype
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.storage import StorageEngine
from shorthaul.tensors.files.formats import find_layout
from shorthaul.tensors.tables.disk.disk_table import DiskTable
from shorthaul.tensors.unified_tensor import Traits, UnifiedTensor


@outside_graphs
def open(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    shape: Sequence[int] | None = None,
    name: str | None = None,
    offset_bytes: int | None = None,
    cache: Any = None,
    cache_bytes: int | str | None = None,
    engine: StorageEngine | None = None,
) -> UnifiedTensor:
    """The table in a file as a unified tensor: only the rows that are asked for are read.

    >>> import tempfile
    >>> from shorthaul.tensors.save_features import save_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = save_features(f"{folder}/x.npy", torch.arange(12.0).view(6, 2))
    ...     u = open(saved.path)
    ...     u.shape, u[torch.tensor([5, 0])], u[2:4].cpu()
    (torch.Size([6, 2]), tensor([[10., 11.],
            [ 0.,  1.]]), tensor([[4., 5.],
            [6., 7.]]))

    The file is opened read-only and read with direct requests where the file system has them. Nothing
    in it is executed.

    Args:
        path: `.npy` (C order), `.safetensors`, a file of `torch.save`, or raw numbers.
        dtype: Of raw numbers. For a table stored as float16 or bfloat16, `torch.float32` shows it
            as float32. None (default) takes the file's.
        shape: Of raw numbers; the number of rows may be -1. None (default) takes the file's.
        name: Which of several tensors in the file; None (default) where there is one.
        offset_bytes: Where raw numbers begin; None (default) for the beginning of the file.
        cache: Which rows are kept in memory: `"sieve"` those used again, `"belady"` those that a
            loader announces, or a tensor of ids, hottest first. None (default) keeps none.
        cache_bytes: Memory for those rows, such as `"1GiB"`; None (default) without a cache.
        engine: Reads the rows; None (default) takes one that all tables share.
    """
    seen = None if dtype is None else parse_dtype(dtype)
    layout = find_layout(path, dtype=seen, shape=shape, name=name, offset_bytes=offset_bytes)
    options = {} if cache_bytes is None else {"cache_bytes": cache_bytes}
    table = DiskTable(layout, cache=cache, engine=engine, **options)
    return UnifiedTensor.of_table(table, Traits(is_read_only=True))
