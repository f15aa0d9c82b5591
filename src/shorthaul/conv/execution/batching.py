"""How the operators run under `torch.func.vmap`: the new dimension becomes batch or groups.

If only images are batched, there are simply more of them. If weights are, each element of the
batch becomes a group of its own, which a grouped convolution keeps apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from shorthaul.conv.execution.operator_names import Geometry, defined


def batch_convolution(
    info: Any,
    in_dims: tuple[int | None, ...],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, int]:
    """Batching rule of `convolution`."""
    *geometry, activation, residual = rest
    size = info.batch_size
    dims = dict(zip(("input", "weight", "bias"), in_dims, strict=False))
    if residual is not None:
        residual = _front(residual, in_dims[-1], size)
    if dims["weight"] is None and dims["bias"] is None:
        images = _front(input, dims["input"], size).flatten(0, 1)
        added = None if residual is None else residual.flatten(0, 1)
        output = defined.convolution(images, weight, bias, *geometry, activation, added)
        return output.unflatten(0, (size, -1)), 0
    output = defined.convolution(
        _into_channels(_front(input, dims["input"], size)),
        _front(weight, dims["weight"], size).flatten(0, 1),
        None if bias is None else _front(bias, dims["bias"], size).flatten(),
        *_grouped(geometry, size),
        activation,
        None if residual is None else _into_channels(residual),
    )
    return output.unflatten(1, (size, -1)), 1


def batch_grad_input(
    info: Any,
    in_dims: tuple[int | None, ...],
    grad_output: Tensor,
    weight: Tensor,
    input_sizes: Any,
    *geometry: Any,
) -> tuple[Tensor, int]:
    """Batching rule of `convolution_grad_input`."""
    size = info.batch_size
    if in_dims[1] is None:
        images = _front(grad_output, in_dims[0], size).flatten(0, 1)
        result = defined.convolution_grad_input(images, weight, input_sizes, *geometry)
        return result.unflatten(0, (size, -1)), 0
    result = defined.convolution_grad_input(
        _into_channels(_front(grad_output, in_dims[0], size)),
        _front(weight, in_dims[1], size).flatten(0, 1),
        input_sizes,
        *_grouped(geometry, size),
    )
    return result.unflatten(1, (size, -1)), 1


def batch_grad_weight(
    info: Any,
    in_dims: tuple[int | None, ...],
    grad_output: Tensor,
    input: Tensor,
    kernel: Any,
    *geometry: Any,
) -> tuple[Tensor, int]:
    """Batching rule of `convolution_grad_weight`: always by groups, weights are kept apart."""
    size = info.batch_size
    result = defined.convolution_grad_weight(
        _into_channels(_front(grad_output, in_dims[0], size)),
        _into_channels(_front(input, in_dims[1], size)),
        kernel,
        *_grouped(geometry, size),
    )
    return result.unflatten(0, (size, -1)), 0


def batch_grad_bias(
    info: Any, in_dims: tuple[int | None, ...], grad_output: Tensor
) -> tuple[Tensor, int]:
    """Batching rule of `convolution_grad_bias`."""
    joined = _into_channels(_front(grad_output, in_dims[0], info.batch_size))
    return defined.convolution_grad_bias(joined).unflatten(0, (info.batch_size, -1)), 0


def _front(tensor: Tensor, dimension: int | None, size: int) -> Tensor:
    """The batch in front; a tensor without one is repeated as a view."""
    if dimension is None:
        return tensor.expand(size, *tensor.shape)
    return tensor.movedim(dimension, 0)


def _into_channels(tensor: Tensor) -> Tensor:
    """(V, N, C, D, H, W) as (N, V * C, D, H, W)."""
    return tensor.movedim(0, 1).flatten(1, 2)


def _grouped(geometry: Sequence[Any], size: int) -> Geometry:
    given = Geometry(*geometry)
    return given._replace(groups=given.groups * size)
