"""Gradients of sums over rows, without a row for each id ever being built.

Forward, a segment adds up rows; backward, a row adds up segments: the same kernel on the index turned
round. Memory is that of the rows that have a gradient, not of the ids.

>>> ids, rows = reduce_gradient_rows(
...     torch.tensor([[1.0], [10.0]]), torch.tensor([0, 2, 3]), torch.tensor([4, 2, 4])
... )
>>> ids, rows
(tensor([2, 4]), tensor([[ 1.],
        [11.]]))
"""

from __future__ import annotations

import torch

from shorthaul.tensors.kernels import host_kernels
from shorthaul.tensors.kernels.plain_rows import sum_dtype
from shorthaul.tensors.kernels.stored_rows import StoredRows


def reduce_gradient_rows(
    gradient: torch.Tensor,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    *,
    is_mean: bool = False,
    weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of the table that have a gradient, and their gradients: ids ascend, each once.

    `gradient` is that of `gather_reduce(pointers, ids, "sum" | "mean", weights)`; `ids` are whole
    and not negative. Each row is summed in the order of the ids, whatever the threads.
    """
    counts = pointers.diff().long()
    segments = torch.repeat_interleave(
        torch.arange(len(counts), dtype=torch.int64, device="cpu"), counts
    )
    order = torch.argsort(ids, stable=True)
    unique, uses = torch.unique_consecutive(ids[order], return_counts=True)
    row_pointers = torch.cat([uses.new_zeros(1), uses.cumsum(0)])
    factors = None if weights is None else weights.detach().to(sum_dtype(gradient.dtype))
    if is_mean:
        shares = counts.to(sum_dtype(gradient.dtype)).reciprocal()[segments]
        factors = shares if factors is None else factors * shares
    rows = StoredRows(gradient.detach().contiguous(), gradient.dtype)
    return unique, host_kernels.gather_reduce(
        rows, row_pointers, segments[order], "sum", None if factors is None else factors[order]
    )


def reduce_gradient_weights(
    rows: StoredRows,
    gradient: torch.Tensor,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    *,
    is_mean: bool = False,
) -> torch.Tensor:
    """The gradient of each weight of `gather_reduce`: its row times its segment's gradient."""
    return host_kernels.multiply_rows(rows, pointers, ids, gradient.detach(), is_mean=is_mean)
