"""Calls that were checked and planned once: what was written and how the tensors lie leads straight to
their kernels.

To check and to plan again would take longer than a small convolution. A call is known by its arguments as
the caller wrote them and by the shapes, strides and dtypes of its tensors; it is used only where nobody
looks on (see `plain`), and everything else goes through the operators.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from shorthaul.conv import aten, calls, kernels
from shorthaul.conv.backend import reason_for_aten
from shorthaul.conv.plain import are_ordinary, is_watched, needs_gradient
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.trained_calls import TrainedCall, can_train, plan_training
from shorthaul.jit import KernelFunction
from shorthaul.jit.runtime import kernel_threads
from shorthaul.settings import settings


class KnownCall(NamedTuple):
    """A call without a gradient, and the output it makes, without canonical dimensions.

    It runs on addresses: what a kernel checks of its tensors was checked when the call was learnt, and is
    part of its key.
    """

    problem: ConvProblem
    call: calls.Call
    kernel: KernelFunction
    numbers: int  # their address
    out_shape: tuple[int, ...]
    out_strides: tuple[int, ...]
    threads: int

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output."""
        call = self.call
        output = torch.empty_strided(
            self.out_shape, self.out_strides, dtype=self.problem.dtype, device="cpu"
        )
        packed = kernels.find_packed(call, self.problem, weight)
        panels_of_bias = None if bias is None else kernels.find_packed_bias(call, bias)
        self.kernel.at(
            input.data_ptr(),
            packed.data_ptr(),
            None if panels_of_bias is None else panels_of_bias.data_ptr(),
            None,
            output.data_ptr(),
            kernels.find_workspace(call.workspace_bytes).data_ptr(),
            self.numbers,
            self.threads,
        )
        return output


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
    sizes, threads = (batch, depth, height, width), kernel_threads()
    # As `run_forward` has asked for it, so that nothing is planned twice.
    call = calls.prepare_forward(problem, sizes, None, threads, has_scaled_weights=False)
    is_trained = needs_gradient(input, weight, bias)
    known: KnownCall | TrainedCall
    if call.is_empty:
        return
    if not is_trained:
        known = KnownCall(
            problem,
            call,
            cast(KernelFunction, call.run),
            call.numbers.data_ptr(),
            output.shape,
            output.stride(),
            threads,
        )
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
