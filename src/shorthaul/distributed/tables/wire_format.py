"""How rows look while they travel: as they are, or in fewer bytes where that is asked for by name.

>>> form = plan_wire_format("int8", torch.float32, (3,))
>>> form.row_bytes, form.decode(form.encode(torch.tensor([[1.0, -2.0, 0.5]])))
(7, tensor([[ 1.0079, -2.0000,  0.5039]]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from shorthaul.errors import RowArgumentError
from shorthaul.tensors.tables.quantized import quantize_rows

WireName = Literal["bfloat16", "int8"]
WIRES: tuple[WireName, ...] = ("bfloat16", "int8")


@dataclass(frozen=True)
class WireFormat:
    """Rows as bytes and back."""

    name: WireName | None  # None: as they are
    dtype: torch.dtype
    row_shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Of one row on its way."""
        width = math.prod(self.row_shape)
        if self.name is None:
            return width * self.dtype.itemsize
        return 2 * width if self.name == "bfloat16" else width + 4

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, row_bytes) uint8."""
        if self.name is None:
            return _as_bytes(rows)
        packed = quantize_rows(rows, self.name)
        values = _as_bytes(packed.values)
        if packed.scales is None:
            return values
        return torch.cat([values, _as_bytes(packed.scales)], dim=1)

    def decode(self, data: torch.Tensor) -> torch.Tensor:
        """The rows, in the table's dtype; those of a format with fewer bytes are near what they were."""
        shape = (len(data), *self.row_shape)
        if self.name is None:
            return data.reshape(-1).view(self.dtype).view(shape)
        if self.name == "bfloat16":
            return data.reshape(-1).view(torch.bfloat16).view(shape).to(self.dtype)
        width = math.prod(self.row_shape)
        values = data[:, :width].view(torch.int8).float()
        # A copy, because a float begins at a multiple of 4 bytes.
        scales = data[:, width:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        return (values * scales).view(shape).to(self.dtype)

    def error_of(self, rows: torch.Tensor, data: torch.Tensor) -> float:
        """The largest difference between rows and what is read from their bytes."""
        if self.name is None or not rows.numel():
            return 0.0
        return float((self.decode(data).float() - rows.float()).abs().max())


def plan_wire_format(
    name: WireName | None, dtype: torch.dtype, row_shape: tuple[int, ...]
) -> WireFormat:
    """The format called `name` for rows of that kind."""
    if name is None:
        return WireFormat(None, dtype, row_shape)
    if name not in WIRES:
        raise RowArgumentError("wire", f"None or one of {', '.join(WIRES)}", repr(name))
    if dtype not in (torch.float32, torch.float64):
        raise RowArgumentError(
            f"wire {name!r}", "for a table of torch.float32 or torch.float64", str(dtype)
        )
    return WireFormat(name, dtype, row_shape)


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    width = rows.shape[1:].numel() * rows.element_size()
    return rows.contiguous().view(-1).view(torch.uint8).view(len(rows), width)
