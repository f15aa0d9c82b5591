"""Whether the kernels of a call are there, and how to have them: asked for all together, waited for or not.

A convolution that is trained has up to a dozen kernels. Asked for one after another, as passes come to need them,
each would wait for the one before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from shorthaul.conv.execution.backend import reason_for_aten
from shorthaul.conv.execution.fingerprint import EXACT_BYTES, hash_function
from shorthaul.conv.execution.packing import panel_kernel
from shorthaul.conv.execution.plan import (
    keep,
    keep_when_ready,
    plan_forward,
    plan_grad_input,
    plan_grad_weight,
    recall,
)
from shorthaul.conv.layout.function import sum_dtype
from shorthaul.conv.methods.gradients.bias import grad_bias_kernel
from shorthaul.conv.planning.choice import Sizes
from shorthaul.conv.problem import ConvProblem
from shorthaul.errors import KernelPendingError
from shorthaul.jit.compiling.loading import gather_pending, load_plans
from shorthaul.jit.operators import needs_gradient
from shorthaul.jit.runtime import kernel_threads


class Needs(NamedTuple):
    """The passes of a call: the forward pass, and these gradients."""

    input: bool
    weight: bool
    bias: bool

    @property
    def is_training(self) -> bool:
        """Whether there is a backward pass at all."""
        return self.input or self.weight or self.bias


def find_needs(input: Tensor, weight: Tensor, bias: Tensor | None) -> Needs:
    """The gradients that autograd would ask for."""
    return Needs(*(needs_gradient(each) for each in (input, weight, bias)))


def can_prepare(problem: ConvProblem, images: Tensor) -> bool:
    """Whether kernels of ours would compute this on the CPU."""
    batch, _, depth, height, width = images.shape
    return (
        images.device.type == "cpu"
        and reason_for_aten(problem, "cpu") is None
        and problem.flops(batch, (depth, height, width)) > 0
    )


def tune_call(problem: ConvProblem, whole: ConvProblem, images: Tensor, needs: Needs) -> None:
    """Measure the ways of a convolution here, once; `whole` has its activation also where it is apart.

    On a CUDA device cuDNN takes part, and each gradient that is needed is measured too.
    """
    batch, _, depth, height, width = images.shape
    if can_prepare(whole, images):
        from shorthaul.conv.execution.tuning import (
            tune_schedule,  # its progress bar is needed by few
        )

        tune_schedule(whole, (batch, depth, height, width))
    elif (
        images.device.type == "cuda" and images.numel() and reason_for_aten(problem, "cuda") is None
    ):
        from shorthaul.conv.triton.tuning import tune_on_device  # Triton takes a second to import

        asked = {"forward": True, "grad_input": needs.input, "grad_weight": needs.weight}
        tune_on_device(problem, images, [name for name, is_needed in asked.items() if is_needed])


def has_kernels(problem: ConvProblem, sizes: Sizes, needs: Needs, *, waits: bool) -> bool:
    """Whether every kernel of a call is there now; those that are not are asked for, or waited for.

    Args:
        problem: The forward pass, as the operators pose it.
        sizes: Batch, depth, height and width of the images.
        needs: The gradients.
        waits: Return when they are there; a compiler's error is raised.
    """
    threads = kernel_threads()
    key = ("ready", problem, sizes, threads, needs)
    if recall(key) is not None:
        return True

    def ask() -> bool:
        plans = list_plans(problem, sizes, needs, threads)
        if waits:
            load_plans(plans)
        elif gather_pending(plans):
            raise KernelPendingError("a convolution's kernel")
        return True

    if waits:
        return keep(key, ask())
    try:
        return keep_when_ready(key, ask)
    except KernelPendingError:
        return False


def list_plans(
    problem: ConvProblem, sizes: Sizes, needs: Needs, threads: int
) -> list[Callable[[], Any]]:
    """What loads the kernels of a call."""
    real = sum_dtype(problem.dtype)
    plans: list[Callable[[], Any]] = [
        functools.partial(plan_forward, problem, sizes, None, threads),
        functools.partial(panel_kernel, real),
    ]
    bare = replace(problem, has_bias=False, activation=None)
    if needs.input:
        unpadded, padded = bare, sizes
        if problem.padding_mode != "zeros":  # what was repeated is added up in full precision
            unpadded = bare.without_padding(real)
            padded = (sizes[0], *problem.padded_sizes(sizes[1:]))
        plans.append(functools.partial(plan_grad_input, unpadded, padded, threads))
    if needs.weight:
        plans.append(functools.partial(plan_grad_weight, bare, sizes, threads))
    if needs.bias:
        channels_last = problem.layout == "channels_last"
        plans.append(functools.partial(grad_bias_kernel, problem.dtype, channels_last))
    weight_values = problem.out_channels * problem.window_values
    if not needs.weight and weight_values * problem.dtype.itemsize > EXACT_BYTES:
        plans.append(hash_function)
    return plans
