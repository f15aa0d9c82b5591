"""Rows in memory as kernels see them: where they lie, how they are stored, what the user sees.

| stored           | scales   | seen as          | how a value is widened              |
| any dtype        | none     | the same         | not at all: bytes are copied        |
| float16/bfloat16 | none     | float32          | exactly, as torch does              |
| int8             | float32  | float32          | value times the scale of its row    |
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class StoredRows:
    """A tensor of rows, with the scale of each row where it is quantized.

    What follows from it is found once: asking a tensor for it costs a small gather a tenth of its time.
    """

    values: torch.Tensor  # (rows, *row_shape); any strides
    dtype: torch.dtype  # what the user sees
    scales: torch.Tensor | None = None  # (rows,) float32, for int8

    @functools.cached_property
    def rows(self) -> int:
        """How many there are."""
        return self.values.shape[0]

    @functools.cached_property
    def row_shape(self) -> torch.Size:
        """The shape of one row."""
        return self.values.shape[1:]

    @functools.cached_property
    def width(self) -> int:
        """Values in one row."""
        return self.row_shape.numel()

    @functools.cached_property
    def row_bytes(self) -> int:
        """Bytes of one row as it is stored, with its scale."""
        scale_bytes = 0 if self.scales is None else self.scales.element_size()
        return self.width * self.values.element_size() + scale_bytes

    @functools.cached_property
    def is_widened(self) -> bool:
        """Whether the user sees another dtype than is stored."""
        return self.dtype is not self.values.dtype

    @functools.cached_property
    def has_whole_rows(self) -> bool:
        """Whether the bytes of each row lie side by side, as kernels need it."""
        return self.rows == 0 or self.values[0].is_contiguous()

    @functools.cached_property
    def stride_bytes(self) -> int:
        """From one row to the next."""
        if self.rows < 2:
            return self.width * self.values.element_size()
        return self.values.stride(0) * self.values.element_size()
