"""Calls that were checked and planned once: what was written and how the tensors lie leads straight to
their plans.

To check and to plan again would take longer than a small convolution. A call is known by its arguments as
the caller wrote them and by the shapes, strides and dtypes of its tensors; it is used only where nobody
watches (see `jit.operators`), and everything else goes through the operators.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.execution.backend import reason_for_aten
from shorthaul.conv.execution.packing import find_packed, find_packed_bias, panel_kernel
from shorthaul.conv.execution.plan import ConvPlan, keep, plan_forward, recall
from shorthaul.conv.execution.training import TrainedCall, can_train, plan_training
from shorthaul.conv.problem import ConvProblem
from shorthaul.errors import KernelPendingError
from shorthaul.jit.operators import are_ordinary, is_watched, needs_gradient
from shorthaul.jit.runtime import kernel_threads
from shorthaul.settings import settings


class Written(NamedTuple):
    """The arguments of a call as its caller wrote them."""

    stride: Any
    padding: Any
    dilation: Any
    groups: int
    padding_mode: str
    activation: str | None
    exact: bool


class KnownCall(NamedTuple):
    """A call without a gradient, and the output it makes, without canonical dimensions."""

    plan: ConvPlan
    out_shape: tuple[int, ...]
    out_strides: tuple[int, ...]

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output. What a plan asks of its tensors is part of what the call is known by."""
        plan = self.plan
        output = torch.empty_strided(
            self.out_shape, self.out_strides, dtype=input.dtype, device="cpu"
        )
        packed = find_packed(plan.weights, plan.canonical, weight)
        packed_bias = None if bias is None else find_packed_bias(plan.weights, bias)
        plan.run(input, packed, packed_bias, None, output)
        return output


def _call_key(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    written: tuple[Any, ...],
    *,
    is_trained: bool,
) -> tuple[Any, ...]:
    return (
        dimensions,
        is_trained,
        settings.kernels,
        kernel_threads(),
        written,
        (input.shape, input.stride(), input.dtype, input.device),
        (weight.shape, weight.stride(), weight.dtype, weight.device),
        None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
    )


def learn_call(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    written: Written,
    problem: ConvProblem,
    geometry: tuple[Any, ...],
    images: Tensor,
    output: Tensor,
) -> None:
    """Remember a call that the CPU's kernels can take as it is; one whose kernels are there.

    `geometry` is what the operators take, `images` the canonical input.
    """
    if (
        input.device.type != "cpu"
        or not images.numel()
        or not output.numel()
        or not images.is_contiguous(memory_format=aten.memory_format(problem))
        or reason_for_aten(problem, "cpu") is not None
    ):
        return
    is_trained = needs_gradient(input, weight, bias)
    with contextlib.suppress(KernelPendingError, TypeError):  # lists cannot be remembered
        known = _know(
            dimensions, input, weight, bias, written, problem, geometry, images, output, is_trained
        )
        if known is not None:
            keep(_call_key(dimensions, input, weight, bias, written, is_trained=is_trained), known)


def _know(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    written: Written,
    problem: ConvProblem,
    geometry: tuple[Any, ...],
    images: Tensor,
    output: Tensor,
    is_trained: bool,
) -> KnownCall | TrainedCall | None:
    batch, _, depth, height, width = images.shape
    sizes, threads = (batch, depth, height, width), kernel_threads()
    # As `run_forward` has asked for it, so that nothing is planned twice.
    plan = plan_forward(problem, sizes, None, threads)
    if not is_trained:
        panel_kernel(plan.weights.real)  # which packs, and may still be compiled
        return KnownCall(plan, output.shape, output.stride())
    if not can_train(plan, bias):
        return None
    return plan_training(
        dimensions, plan, geometry, written.activation, input, weight, bias, output
    )


def run_known(
    dimensions: int, input: Tensor, weight: Tensor, bias: Tensor | None, written: tuple[Any, ...]
) -> Tensor | None:
    """The output of a call that is known already and that nobody looks at; else `None`."""
    if is_watched() or not are_ordinary(input, weight, bias) or torch.is_autocast_enabled("cpu"):
        return None
    is_trained = needs_gradient(input, weight, bias)
    try:
        known: KnownCall | TrainedCall | None = recall(
            _call_key(dimensions, input, weight, bias, written, is_trained=is_trained)
        )
    except TypeError:
        return None
    return None if known is None else known.run(input, weight, bias)
