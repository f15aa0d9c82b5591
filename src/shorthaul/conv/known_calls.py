"""Calls that were checked and planned once: what was written and how the tensors lie leads straight to
their kernels.

To check and to plan again would take longer than a small convolution. A call is known by its arguments as
the caller wrote them and by the shapes, strides and dtypes of its tensors; it is used only where nobody
looks on (see `plain`), and everything else goes through the operators.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shorthaul.conv import aten, calls, kernels
from shorthaul.conv.backend import reason_for_aten
from shorthaul.conv.plain import are_ordinary, is_watched, needs_gradient
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.trained_calls import TrainedCall, can_train, plan_training
from shorthaul.jit.runtime import kernel_threads
from shorthaul.settings import settings


class KnownCall(NamedTuple):
    """A call without a gradient, and the output it makes, without canonical dimensions."""

    problem: ConvProblem
    call: calls.Call
    out_shape: tuple[int, ...]
    out_strides: tuple[int, ...]

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""
        output = torch.empty_strided(self.out_shape, self.out_strides, dtype=self.problem.dtype)
        return kernels.run_prepared(self.call, self.problem, input, weight, bias, None, output)


_known_calls: dict[tuple[Any, ...], KnownCall | TrainedCall] = {}
_MOST_KNOWN_CALLS = 4096
calls.on_forgotten_plans(_known_calls.clear)


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
        *(
            None if each is None else (each.shape, each.stride(), each.dtype, each.device)
            for each in (input, weight, bias)
        ),
    )


def learn_call(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    written: tuple[Any, ...],
    problem: ConvProblem,
    geometry: tuple[Any, ...],
    images: Tensor,
    output: Tensor,
) -> None:
    """Remember a call that the CPU's kernels can take as it is.

    `written` ends with the activation and `exact`, `geometry` is what the operators take, `images` the
    canonical input.
    """
    if (
        input.device.type != "cpu"
        or not images.numel()
        or not output.numel()
        or not images.is_contiguous(memory_format=aten.memory_format(problem))
        or reason_for_aten(problem, "cpu") is not None
    ):
        return
    batch, _, depth, height, width = images.shape
    call = calls.prepare_forward(problem, (batch, depth, height, width), None, kernel_threads())
    is_trained = needs_gradient(input, weight, bias)
    known: KnownCall | TrainedCall
    if not is_trained:
        known = KnownCall(problem, call, output.shape, output.stride())
    elif can_train(problem, call, bias):
        known = plan_training(
            dimensions, problem, geometry, written[-2], call, input, weight, bias, output
        )
    else:
        return
    if len(_known_calls) >= _MOST_KNOWN_CALLS:
        _known_calls.clear()
    with contextlib.suppress(TypeError):  # lists cannot be remembered
        key = _call_key(dimensions, input, weight, bias, written, is_trained=is_trained)
        _known_calls[key] = known


def run_known(
    dimensions: int, input: Tensor, weight: Tensor, bias: Tensor | None, written: tuple[Any, ...]
) -> Tensor | None:
    """The output of a call that is known already and that nobody looks at; else `None`."""
    if is_watched() or not are_ordinary(input, weight, bias) or torch.is_autocast_enabled("cpu"):
        return None
    is_trained = needs_gradient(input, weight, bias)
    try:
        known = _known_calls.get(
            _call_key(dimensions, input, weight, bias, written, is_trained=is_trained)
        )
    except TypeError:
        return None
    return None if known is None else known.run(input, weight, bias)
