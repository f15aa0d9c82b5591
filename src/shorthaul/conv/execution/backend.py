"""Who computes a convolution: the generated kernels, or ATen with the reason noted."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Protocol

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.execution import execute as kernels
from shorthaul.conv.execution.packing import panel_kernel
from shorthaul.conv.layout.function import sum_dtype
from shorthaul.conv.problem import DEVICE_DTYPES, ConvProblem, Triple
from shorthaul.conv.triton.measured import Measured
from shorthaul.errors import KernelPendingError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit import can_use_kernels
from shorthaul.jit.launching.triton_at_hand import require_triton, why_no_triton
from shorthaul.settings import settings


class Backend(Protocol):
    """Forward and both gradients, for dense 5-D tensors that are not empty: a module of functions."""

    def run_forward(
        self,
        problem: ConvProblem,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        *,
        out: Tensor | None = None,
        is_trained: bool = False,
    ) -> Tensor:
        """activation(convolution + bias + residual), into `out` where it is given.

        Parameters that are trained change before their next use: no packed copy of them is kept. Nor
        could it be trusted, because optimizers that write through `parameter.data` raise no version.
        """

    def run_grad_input(
        self,
        problem: ConvProblem,
        grad_output: Tensor,
        weight: Tensor,
        input_sizes: Triple,
        *,
        is_trained: bool = False,
    ) -> Tensor:
        """The gradient of the input."""

    def run_grad_weight(self, problem: ConvProblem, grad_output: Tensor, input: Tensor) -> Tensor:
        """The gradient of the weight."""


class _WhenReady:
    """The CPU's kernels, and ATen for as long as one that is needed is being compiled.

    A kernel that is not there is missed before anything is written, and ATen begins anew. The kernel that
    packs weights, which the others need, is asked for with the first of them.
    """

    @staticmethod
    def run_forward(*arguments: Any, **options: Any) -> Tensor:
        """See `Backend`."""
        try:
            return kernels.run_forward(*arguments, **options)
        except KernelPendingError:
            _ask_for_panels(arguments[0])
            return aten.run_forward(*arguments, **options)

    @staticmethod
    def run_grad_input(*arguments: Any, **options: Any) -> Tensor:
        """See `Backend`."""
        try:
            return kernels.run_grad_input(*arguments, **options)
        except KernelPendingError:
            _ask_for_panels(arguments[0])
            return aten.run_grad_input(*arguments, **options)

    @staticmethod
    def run_grad_weight(*arguments: Any) -> Tensor:
        """See `Backend`."""
        try:
            return kernels.run_grad_weight(*arguments)
        except KernelPendingError:
            _ask_for_panels(arguments[0])
            return aten.run_grad_weight(*arguments)


def _ask_for_panels(problem: ConvProblem) -> None:
    with contextlib.suppress(KernelPendingError):
        panel_kernel(sum_dtype(problem.dtype))


KERNELS_WHEN_READY: Backend = _WhenReady()


def choose_backend(problem: ConvProblem, device: torch.device) -> Backend:
    """The generated kernels where they apply, else ATen, which is noted as a fallback."""
    reason = _reason_for_aten(problem, device.type, settings.kernels)
    if reason is None and device.type == "cuda" and settings.kernels == "auto":
        return Measured()
    if reason is not None:
        note_fallback("convolution", "ATen", reason)
        return aten
    if device.type == "cpu":
        return KERNELS_WHEN_READY
    from shorthaul.conv.triton import (
        launch as triton_launch,  # Triton takes a second to import, and is optional
    )

    return triton_launch


def reason_for_aten(problem: ConvProblem, device_type: str) -> str | None:
    """Why no generated kernel computes `problem` on such a device now; `None` if one does."""
    return _reason_for_aten(problem, device_type, settings.kernels)


@functools.lru_cache(maxsize=4096)
def _reason_for_aten(problem: ConvProblem, device_type: str, wanted: str) -> str | None:
    if device_type == "cpu":
        if not can_use_kernels("convolution"):
            return "SHORTHAUL_KERNELS is torch" if wanted == "torch" else "there is no C++ compiler"
        return kernels.supports(problem)
    if device_type != "cuda":
        return f"there is no generated kernel for {device_type}"
    if wanted == "torch":
        return "SHORTHAUL_KERNELS is torch"
    if wanted == "auto":
        return why_no_triton() or (
            None if problem.dtype in DEVICE_DTYPES else f"{problem.dtype} has no Triton kernel"
        )
    require_triton("a convolution by a generated kernel")
    from shorthaul.conv.triton import launch as triton_launch

    return triton_launch.supports(problem)
