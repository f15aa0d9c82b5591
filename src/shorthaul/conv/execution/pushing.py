"""Forward-mode derivatives of the operators: how tangents of their tensors become one of their result.

A convolution is linear in its input and in its weight, and so are both gradients in theirs. The tangent of a
product is the sum of two products, each with one factor's tangent::

    d convolution(input, weight) = convolution(d input, weight) + convolution(input, d weight)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from shorthaul.conv.execution.operator_names import defined


def push_convolution(arguments: Sequence[Any], tangents: Sequence[Any]) -> Tensor | None:
    """Of `convolution`, whose bias and residual are added."""
    input, weight, _, *geometry, activation, _ = arguments
    of_input, of_weight, of_bias, *_, of_residual = tangents
    if activation is not None:
        raise NotImplementedError(
            "shorthaul::convolution with a fused activation has no forward-mode derivative; "
            "`sh.conv2d` applies the activation separately where one is needed."
        )
    # Each takes up what there is so far as a residual: no pass over memory is needed to add them.
    tangent: Tensor | None = of_residual
    if of_input is not None:
        tangent = defined.convolution(of_input, weight, None, *geometry, None, tangent)
    if of_weight is not None:
        result: Tensor = defined.convolution(input, of_weight, of_bias, *geometry, None, tangent)
        return result
    if of_bias is None:
        return tangent
    if tangent is None:
        tangent = torch.zeros_like(defined.convolution(input, weight, None, *geometry, None, None))
    with forward_ad._set_fwd_grad_enabled(True):
        moved: Tensor = tangent + of_bias.view(-1, *(1,) * (tangent.dim() - 2))
        return moved


def push_grad_input(arguments: Sequence[Any], tangents: Sequence[Any]) -> Tensor | None:
    """Of `convolution_grad_input`."""
    return _push_product(defined.convolution_grad_input, arguments, tangents)


def push_grad_weight(arguments: Sequence[Any], tangents: Sequence[Any]) -> Tensor | None:
    """Of `convolution_grad_weight`."""
    return _push_product(defined.convolution_grad_weight, arguments, tangents)


def push_grad_bias(arguments: Sequence[Any], tangents: Sequence[Any]) -> Tensor | None:  # noqa: ARG001
    """Of `convolution_grad_bias`."""
    return None if tangents[0] is None else defined.convolution_grad_bias(tangents[0])


def _push_product(
    product: Callable[..., Any], arguments: Sequence[Any], tangents: Sequence[Any]
) -> Tensor | None:
    first, second, *rest = arguments
    parts = []
    if tangents[0] is not None:
        parts.append(product(tangents[0], second, *rest))
    if tangents[1] is not None:
        parts.append(product(first, tangents[1], *rest))
    # PyTorch switches forward mode off while it asks for a tangent. Operators switch it on again for the levels
    # around this one, its own addition would lose their tangents.
    with forward_ad._set_fwd_grad_enabled(True):
        return sum(parts[1:], start=parts[0]) if parts else None
