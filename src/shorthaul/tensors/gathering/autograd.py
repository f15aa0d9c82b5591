"""Gradients of gathers: to the table as dense or sparse rows, to weights as usual.

| forward                        | gradient of the row at position e, segment s       |
| rows = table[ids]              | g[e]                                               |
| gather_reduce, sum             | w[e] * g[s]                                        |
| gather_reduce, mean            | w[e] * g[s] / rows in s                            |
| gather_reduce, max             | w[e] * g[s] / ties, where the row is the maximum   |
| gather_linear(ids, weight)     | g[e] @ weight                                      |

Gradients of equal ids are added in the order of `ids`, as `nn.Embedding` adds them. The fused
operations do not keep the rows they read: the backward pass gathers again what it needs.
"""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.tensors.gathering.row_gradients import reduce_gradient_rows, reduce_gradient_weights
from shorthaul.tensors.kernels.plain_rows import Reduction, sum_dtype
from shorthaul.tensors.kernels.stored_rows import FLOATING
from shorthaul.tensors.tables.table import HostTable, RowTable, plain_ids

Gradients = tuple[torch.Tensor | None, ...]


def row_gradient(
    gradient: torch.Tensor, ids: torch.Tensor, shape: torch.Size, *, sparse: bool
) -> torch.Tensor:
    """The gradient of a table of `shape` when that of the rows `ids` is `gradient`.

    >>> row_gradient(torch.ones(3, 2), torch.tensor([1, 0, 1]), torch.Size([2, 2]), sparse=False)
    tensor([[1., 1.],
            [2., 2.]])
    """
    ids = plain_ids(ids.cpu(), shape[0]).long()
    gradient = gradient.cpu()  # the table is in host memory, and so is its gradient
    if sparse:
        return torch.sparse_coo_tensor(
            ids[None], gradient, shape, dtype=gradient.dtype, device="cpu", check_invariants=False
        )
    width = shape[1:].numel()
    if gradient.dtype not in FLOATING or 0 in shape:
        return gradient.new_zeros(shape).index_add(0, ids, gradient)
    dense: torch.Tensor = torch.ops.aten.embedding_dense_backward(
        gradient.reshape(len(ids), width), ids, shape[0], -1, False
    )
    return dense.view(shape)


def gather_on(
    table: RowTable, ids: torch.Tensor, device: torch.device, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The rows that `ids` name, on `device`."""
    if device.type == "cpu":
        return table.gather(ids.cpu(), out)
    from shorthaul.tensors.cuda.gather import gather_for_device

    return gather_for_device(table, ids, device, out=out)


def reduce_on(
    table: RowTable,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    op: Reduction,
    weights: torch.Tensor | None,
    device: torch.device,
) -> torch.Tensor:
    """One row for each segment of `ids`, on `device`."""
    if device.type == "cpu":
        weights = None if weights is None else weights.cpu()
        return table.gather_reduce(pointers.cpu(), ids.cpu(), op, weights)
    from shorthaul.tensors.cuda.gather import gather_reduce_for_device

    return gather_reduce_for_device(table, pointers, ids, device, op, weights)


def linear_on(
    table: RowTable, ids: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`linear` of the rows that `ids` name, on the device of `weight`."""
    if weight.device.type == "cpu":
        return table.gather_linear(ids.cpu(), weight, bias)
    return torch.nn.functional.linear(gather_on(table, ids, weight.device), weight, bias)


class GatherRows(torch.autograd.Function):
    """`table[ids]`."""

    @staticmethod
    def forward(
        ctx: Any,
        whole: torch.Tensor,
        ids: torch.Tensor,
        table: RowTable,
        sparse: bool,
        device: torch.device,
    ) -> torch.Tensor:
        """The rows; `whole` is the tensor that the gradient belongs to."""
        ctx.save_for_backward(ids)
        ctx.shape, ctx.sparse = whole.shape, sparse
        return gather_on(table, ids, device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Rows added up into the table's gradient."""
        (ids,) = ctx.saved_tensors
        to_table = row_gradient(gradients[0], ids, ctx.shape, sparse=ctx.sparse)
        return to_table, None, None, None, None


class GatherReduce(torch.autograd.Function):
    """`table.gather_reduce(pointers, ids, op, weights)`."""

    @staticmethod
    def forward(
        ctx: Any,
        whole: torch.Tensor,
        weights: torch.Tensor | None,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: Reduction,
        table: RowTable,
        sparse: bool,
        device: torch.device,
    ) -> torch.Tensor:
        """One row for each segment."""
        reduced = reduce_on(table, pointers, ids, op, weights, device)
        # `whole` is saved for its version: rows are read again, and must be the same.
        ctx.save_for_backward(whole, weights, pointers, ids, reduced if op == "max" else None)
        ctx.op, ctx.table, ctx.sparse = op, table, sparse
        return reduced

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Gradients:
        """Each segment's gradient shared out to its rows."""
        whole, weights, pointers, ids, reduced = ctx.saved_tensors
        device = gradient.device
        if device.type == "cpu" and ctx.op != "max" and isinstance(ctx.table, HostTable):
            return _share_out_on_host(ctx, gradient)
        counts = pointers.to(device).diff().long()
        segments = torch.repeat_interleave(
            torch.arange(len(counts), device=device, dtype=torch.int64), counts
        )
        if ctx.op == "mean":
            shape = (-1, *[1] * (gradient.dim() - 1))
            gradient = gradient / counts.clamp(min=1).to(gradient.dtype).view(shape)
        shared = gradient[segments]
        factors = (
            None if weights is None else weights.to(device).view(-1, *[1] * (shared.dim() - 1))
        )
        needs_rows = ctx.op == "max" or ctx.needs_input_grad[1]
        rows = gather_on(ctx.table, ids, device) if needs_rows else shared
        wide = sum_dtype(whole.dtype)
        if ctx.op == "max":
            # In the precision that the maximum was taken in, or equal values would differ.
            weighted = rows if factors is None else (rows.to(wide) * factors.to(wide)).to(rows)
            is_largest = (weighted == reduced[segments]).to(gradient.dtype)
            ties = torch.zeros_like(reduced).index_add_(0, segments, is_largest)
            shared = shared * is_largest / ties[segments].clamp(min=1)
        to_table = to_weights = None
        if ctx.needs_input_grad[0]:
            by_row = (shared if factors is None else shared * factors).to(whole.dtype)
            to_table = row_gradient(by_row, ids, whole.shape, sparse=ctx.sparse)
        if ctx.needs_input_grad[1]:
            products = (shared * rows).reshape(len(ids), whole.shape[1:].numel())
            to_weights = products.sum(1).to(weights)
        return to_table, to_weights, None, None, None, None, None, None


def _share_out_on_host(ctx: Any, gradient: torch.Tensor) -> Gradients:
    """The gradients of a sum or mean in memory, by kernels that build no row for each id."""
    whole, weights, pointers, ids, _ = ctx.saved_tensors
    is_mean = ctx.op == "mean"
    pointers, ids = pointers.cpu(), plain_ids(ids.cpu(), whole.shape[0])
    factors = None if weights is None else weights.cpu()
    to_table = to_weights = None
    if ctx.needs_input_grad[0]:
        unique, rows = reduce_gradient_rows(
            gradient, pointers, ids, is_mean=is_mean, weights=factors
        )
        if ctx.sparse:
            to_table = torch.sparse_coo_tensor(
                unique[None],
                rows,
                whole.shape,
                dtype=rows.dtype,
                device="cpu",
                check_invariants=False,
                is_coalesced=True,
            )
        else:
            to_table = gradient.new_zeros(whole.shape).index_copy_(0, unique, rows)
    if ctx.needs_input_grad[1]:
        products = reduce_gradient_weights(
            ctx.table.stored, gradient, pointers, ids, is_mean=is_mean
        )
        to_weights = products.to(weights)
    return to_table, to_weights, None, None, None, None, None, None


class GatherLinear(torch.autograd.Function):
    """`table.gather_linear(ids, weight, bias)`."""

    @staticmethod
    def forward(
        ctx: Any,
        whole: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        ids: torch.Tensor,
        table: RowTable,
        sparse: bool,
    ) -> torch.Tensor:
        """`linear(table[ids], weight, bias)`."""
        ctx.save_for_backward(whole, weight, ids)
        ctx.table, ctx.sparse = table, sparse
        return linear_on(table, ids, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Gradients:
        """As for `linear`, on rows that are gathered again."""
        whole, weight, ids = ctx.saved_tensors
        to_table = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_table = row_gradient(gradient @ weight, ids, whole.shape, sparse=ctx.sparse)
        if ctx.needs_input_grad[1]:
            to_weight = gradient.t() @ gather_on(ctx.table, ids, gradient.device)
        if ctx.needs_input_grad[2]:
            to_bias = gradient.sum(0)
        return to_table, to_weight, to_bias, None, None, None
