"""What the row kernels compute, in plain torch: the fallback without a compiler, and the oracle.

Ids are whole, in range and not negative here; `table` checks them before.
"""

from __future__ import annotations

from typing import Literal

import torch

from shorthaul.tensors.kernels.stored_rows import StoredRows

Reduction = Literal["sum", "mean", "max"]
REDUCTIONS: tuple[Reduction, ...] = ("sum", "mean", "max")


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What rows of `dtype` are added up in: half precision would lose what it adds."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def gather(rows: StoredRows, ids: torch.Tensor) -> torch.Tensor:
    """The rows that `ids` name, as the user sees them."""
    taken = rows.values[ids.long()]
    if not rows.is_widened:
        return taken
    taken = taken.to(rows.dtype)
    if rows.scales is None:
        return taken
    scales = rows.scales[ids.long()].to(rows.dtype)
    return taken * scales.view(-1, *[1] * len(rows.row_shape))


def gather_reduce(
    rows: StoredRows,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    op: Reduction,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """One row for each segment `ids[pointers[s]:pointers[s + 1]]`; zeros where it is empty."""
    summed = sum_dtype(rows.dtype)
    taken = gather(rows, ids).to(summed).reshape(len(ids), rows.width)
    if weights is not None:
        taken = taken * weights.to(summed)[:, None]
    counts = pointers.diff().long()
    segments = torch.repeat_interleave(
        torch.arange(len(counts), dtype=torch.int64, device="cpu"), counts
    )
    out = torch.zeros(len(counts), rows.width, dtype=summed, device="cpu")
    if op == "max":
        spread = segments[:, None].expand_as(taken)
        out.scatter_reduce_(0, spread, taken, "amax", include_self=False)
    else:
        out.index_add_(0, segments, taken)
    if op == "mean":
        out /= counts.clamp(min=1)[:, None]
    return out.to(rows.dtype).view(len(counts), *rows.row_shape)


def gather_linear(
    rows: StoredRows, ids: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`torch.nn.functional.linear` of the rows that `ids` name."""
    return torch.nn.functional.linear(gather(rows, ids), weight, bias)


def scatter(rows: StoredRows, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` over the rows that `ids` name; of repeated ids the last one wins."""
    last = torch.full((rows.rows,), -1, dtype=torch.int64, device="cpu")
    # Positions ascend, so the largest of a row is its last.
    last.scatter_reduce_(
        0, ids.long(), torch.arange(len(ids), dtype=torch.int64, device="cpu"), "amax"
    )
    written = (last >= 0).nonzero()[:, 0]
    rows.values[written] = values[last[written]].to(rows.values.dtype)


def multiply_rows(
    rows: StoredRows,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    gradient: torch.Tensor,
    *,
    is_mean: bool,
) -> torch.Tensor:
    """For each id, the scalar product of its row and the gradient of its segment."""
    summed = sum_dtype(rows.dtype)
    counts = pointers.diff().long()
    segments = torch.repeat_interleave(
        torch.arange(len(counts), dtype=torch.int64, device="cpu"), counts
    )
    taken = gather(rows, ids).to(summed).reshape(len(ids), rows.width)
    products = (taken * gradient.reshape(-1, rows.width).to(summed)[segments]).sum(1)
    return products / counts[segments] if is_mean else products
