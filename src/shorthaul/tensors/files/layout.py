"""`DiskLayout`: where the rows of a table lie in a file, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shorthaul.errors import TableFormatError

WRITE_AGAIN = "Write it again: sh.save_features(path, tensor)."
# Stored dtypes that the gather kernels widen to float32.
WIDENED_DTYPES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class DiskLayout:
    """Where the rows of one table lie in a file, and as what."""

    path: Path  # links resolved
    offset_bytes: int  # of row 0
    dtype: torch.dtype  # what the user sees
    shape: tuple[int, ...]  # (rows, *row shape)
    row_stride_bytes: int  # from one row to the next; more than a row where columns were cut off
    scales: DiskLayout | None = None  # one number per row, for rows stored as int8
    stored_dtype: torch.dtype | None = None  # what lies in the file, when the user sees another
    order: DiskLayout | None = (
        None  # ids of the rows that come first, where rows do not lie in order
    )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the file."""
        return math.prod(self.shape[1:]) * (self.stored_dtype or self.dtype).itemsize

    @property
    def stop_bytes(self) -> int:
        """The first byte after the last row."""
        if self.shape[0] == 0 or self.row_bytes == 0:
            return self.offset_bytes
        return self.offset_bytes + (self.shape[0] - 1) * self.row_stride_bytes + self.row_bytes


def choose_name(path: Path, name: str | None, names: Sequence[str]) -> str:
    """The tensor that is asked for among those of a file."""
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        shown = ", ".join(sorted(names)[:20]) + (", ..." if len(names) > 20 else "")
        asked = "no `name` was given" if name is None else f"{name!r} is none of them"
        raise TableFormatError(
            path,
            f"it holds {len(names)} tensors ({shown}), and {asked}"
            if names
            else "it holds no tensor",
            "Choose one: sh.open(path, name=...)." if names else WRITE_AGAIN,
        )
    return name
