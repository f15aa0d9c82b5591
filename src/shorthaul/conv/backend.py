"""Who computes a convolution: the generated kernels, or ATen with the reason noted."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.problem import ConvProblem, Triple
from shorthaul.fallbacks import note_fallback


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
    ) -> Tensor:
        """activation(convolution + bias + residual), into `out` where it is given."""

    def run_grad_input(
        self, problem: ConvProblem, grad_output: Tensor, weight: Tensor, input_sizes: Triple
    ) -> Tensor:
        """The gradient of the input."""

    def run_grad_weight(self, problem: ConvProblem, grad_output: Tensor, input: Tensor) -> Tensor:
        """The gradient of the weight."""


def choose_backend(problem: ConvProblem, device: torch.device) -> Backend:
    """The generated kernels where they apply, else ATen, which is noted as a fallback."""
    reason = reason_for_aten(problem, device.type)
    note_fallback("convolution", "ATen", reason)
    return aten


def reason_for_aten(problem: ConvProblem, device_type: str) -> str:
    """Why no generated kernel computes `problem` here."""
    return f"there is no generated kernel for {problem.dtype} on {device_type}"
