"""Rows as kernels see them: sizes, strides, and whether a row's bytes lie side by side."""

from __future__ import annotations

import torch

from shorthaul.tensors.kernels.stored_rows import StoredRows


def test_sizes_of_plain_rows():
    rows = StoredRows(torch.zeros(5, 2, 3), torch.float32)
    assert (rows.rows, rows.row_shape, rows.width, rows.row_bytes) == (5, (2, 3), 6, 24)
    assert (rows.stride_bytes, rows.is_widened, rows.has_whole_rows) == (24, False, True)


def test_a_scale_belongs_to_its_row():
    rows = StoredRows(torch.zeros(5, 6, dtype=torch.int8), torch.float32, torch.ones(5))
    assert (rows.row_bytes, rows.is_widened) == (10, True)


def test_strides_of_views():
    around = torch.zeros(6, 8)
    assert StoredRows(around[::2, :3], torch.float32).stride_bytes == 64
    assert StoredRows(around[::2, :3], torch.float32).has_whole_rows
    assert not StoredRows(around.t(), torch.float32).has_whole_rows
    assert StoredRows(around[:1].expand(4, 8), torch.float32).stride_bytes == 0
    assert StoredRows(around[:0].t()[:0], torch.float32).has_whole_rows
