"""A step of training a call that is known: its kernels, planned once and called by addresses.

What a contract asks of a kernel's tensors is checked when the call is planned: their dtypes, devices, shapes
and strides are what the call is known by, and everything else lies in memory of our own. A step then costs
about what autograd itself costs; through operators it took four times as long as a tiny convolution.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.execution.execute import run_grad_bias
from shorthaul.conv.execution.operators import (
    convolution_grad_bias,
    convolution_grad_input,
    convolution_grad_weight,
)
from shorthaul.conv.execution.packing import panel_kernel
from shorthaul.conv.execution.plan import (
    ConvPlan,
    find_workspace,
    plan_grad_input,
    plan_grad_weight,
)
from shorthaul.conv.layout.weights import packed_values
from shorthaul.conv.problem.arguments import expand_dimensions
from shorthaul.errors import KernelPendingError
from shorthaul.jit import KernelFunction
from shorthaul.jit.operators import SingleLevelFunction, are_ordinary, is_watched
from shorthaul.jit.runtime import kernel_threads

_ALIGNMENT = 64


class PanelMove(NamedTuple):
    """Weights to panels or back, at strides that are known."""

    run: KernelFunction
    numbers: tuple[int, ...]
    packed_bytes: int


class PlannedPass(NamedTuple):
    """One kernel of a step, and the panels that it reads or writes."""

    plan: ConvPlan
    move: PanelMove
    move_bias: PanelMove | None
    panels: int  # where in the workspace they begin, in bytes
    bias_panels: int
    workspace_bytes: int


class PlannedGradients(NamedTuple):
    """The kernels of a step's backward pass, for one number of threads; those that are needed."""

    input: tuple[PlannedPass, ...]
    is_covered: bool  # whether they write every value of the input's gradient
    weight: PlannedPass | None


@dataclass(frozen=True, eq=False)
class TrainedCall:
    """A call whose output is differentiated; tensors have the caller's dimensions, and a batch.

    It saves what the operators save: a checkpoint that ran through those may be run again by this.
    """

    dimensions: int
    is_batched: bool  # whether the caller's images are
    geometry: tuple[Any, ...]  # as the operators take it
    activation: str | None  # applied by PyTorch: its gradient needs the value before it
    forward: PlannedPass
    input_like: Tensor  # of no memory: sizes, strides and dtype
    weight_like: Tensor
    output_like: Tensor
    gradients: dict[tuple[int, bool, bool], PlannedGradients]  # by threads and by what is needed

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output, with its gradient recorded."""
        images = input if self.is_batched else input.unsqueeze(0)
        output: Tensor = _Step.apply(images, weight, bias, self)  # type: ignore[no-untyped-call]
        output = output if self.is_batched else output.squeeze(0)
        return aten.apply_activation(output, self.activation)

    def find_gradients(self, for_input: bool, for_weight: bool) -> PlannedGradients:
        """The backward pass for as many threads as there are now; what nobody needs is not compiled."""
        key = (kernel_threads(), for_input, for_weight)
        planned = self.gradients.get(key)
        if planned is None:
            planned = self.gradients[key] = self._plan_gradients(*key)
        return planned

    def _plan_gradients(self, threads: int, for_input: bool, for_weight: bool) -> PlannedGradients:
        images = expand_dimensions(self.input_like, self.dimensions)
        batch, _, depth, height, width = images.shape
        sizes = (batch, depth, height, width)
        problem = self.forward.plan.problem
        phases: tuple[PlannedPass, ...] = ()
        is_covered, weight = True, None
        if for_input:
            of_input = plan_grad_input(problem, sizes, threads)
            phases = tuple(_plan_pass(each, self.weight_like) for each in of_input.phases)
            is_covered = of_input.is_covered
        if for_weight:
            of_weight = plan_grad_weight(problem, sizes, threads)
            weight = _plan_pass(of_weight, self.weight_like, is_back=True)
        return PlannedGradients(phases, is_covered, weight)


def can_train(plan: ConvPlan, bias: Tensor | None) -> bool:
    """Whether a step of the call needs nothing beside its kernels and their panels."""
    return (
        plan.problem.padding_mode == "zeros"  # gradients of others are folded after the kernels
        and plan.problem.dtype == plan.weights.real  # panels of others are rounded
        and plan.weights.only_moves
        and (bias is None or bias.is_contiguous())
    )


def plan_training(
    dimensions: int,
    plan: ConvPlan,
    geometry: tuple[Any, ...],
    activation: str | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor,
) -> TrainedCall:
    """The steps of a call with tensors like these, which `can_train`."""
    is_batched = input.dim() == dimensions + 2
    if not is_batched:
        input, output = input.unsqueeze(0), output.unsqueeze(0)
    weight_like = torch.empty_like(weight, device="meta")  # dense, also where the weight is not
    return TrainedCall(
        dimensions,
        is_batched,
        geometry,
        activation,
        _plan_pass(plan, weight, bias),
        _without_memory(input),
        weight_like,
        _without_memory(output),
        {},
    )


def _without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _plan_pass(
    plan: ConvPlan, weight: Tensor, bias: Tensor | None = None, *, is_back: bool = False
) -> PlannedPass:
    """A kernel with the panels of `weight`: made before it runs, or taken back afterwards."""
    layout = plan.weights
    kernel, value_bytes = panel_kernel(layout.real), layout.real.itemsize
    view = layout.view(weight.view(plan.canonical))
    move = PanelMove(
        kernel.unpack_panels if is_back else kernel.pack_panels,
        (*view.numbers(), layout.panel, layout.lanes),
        packed_values(view, layout.panel) * plan.stretches * value_bytes,
    )
    move_bias = None
    of_bias = None if bias is None else layout.bias_view
    if of_bias is not None:
        move_bias = PanelMove(
            kernel.pack_panels,
            (*of_bias.numbers(), layout.panel, layout.lanes),
            packed_values(of_bias, layout.panel) * value_bytes,
        )
    panels = _aligned(plan.workspace_bytes)
    bias_panels = panels + _aligned(move.packed_bytes)
    return PlannedPass(
        plan,
        move,
        move_bias,
        panels,
        bias_panels,
        bias_panels + (move_bias.packed_bytes if move_bias else 0),
    )


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _convolve(
    planned: PlannedPass,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor,
) -> None:
    """The kernel of a forward pass, or of a phase of the input's gradient."""
    workspace, threads = find_workspace(planned.workspace_bytes).data_ptr(), planned.plan.threads
    panels = workspace + planned.panels
    planned.move.run.at(weight.data_ptr(), panels, *planned.move.numbers, threads)
    bias_address = None
    if bias is not None:
        bias_address = bias.data_ptr()
        if planned.move_bias is not None:
            move, bias_panels = planned.move_bias, workspace + planned.bias_panels
            move.run.at(bias_address, bias_panels, *move.numbers, threads)
            bias_address = bias_panels
    planned.plan.run_at(input.data_ptr(), panels, bias_address, None, output.data_ptr(), workspace)


def _sum_windows(planned: PlannedPass, input: Tensor, gradient: Tensor, sums: Tensor) -> None:
    """The gradient of the weights, into `sums`."""
    workspace, plan = find_workspace(planned.workspace_bytes).data_ptr(), planned.plan
    panels = workspace + planned.panels
    if plan.adds_up:  # the others store their first block
        ctypes.memset(panels, 0, planned.move.packed_bytes)
    plan.sum_windows(input.data_ptr(), gradient.data_ptr(), panels, workspace)
    planned.move.run.at(panels, sums.data_ptr(), *planned.move.numbers, plan.threads)


def _empty(like: Tensor) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")


class _Step(SingleLevelFunction):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, known: TrainedCall
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.known = known
        output = _empty(known.output_like)
        _convolve(known.forward, input, weight, bias, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        is_seen = (
            torch.is_grad_enabled() or is_watched() or not are_ordinary(gradient, input, weight)
        )
        needs = ctx.needs_input_grad
        if not is_seen:
            with contextlib.suppress(KernelPendingError):  # then operators take what is there
                return *_differentiate(ctx.known, gradient, input, weight, needs), None
        return *_differentiate_by_operators(ctx.known, gradient, input, weight, needs), None


_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _differentiate(
    known: TrainedCall, gradient: Tensor, input: Tensor, weight: Tensor, needs: tuple[bool, ...]
) -> _Gradients:
    """The gradients of the input, of the weight and of the bias, as far as they are needed."""
    planned = known.find_gradients(needs[0], needs[1])
    for_input = for_weight = for_bias = None
    if needs[2]:
        for_bias = run_grad_bias(expand_dimensions(gradient, known.dimensions))
    if gradient.stride() != known.output_like.stride():
        gradient = _laid_like(gradient, known.output_like)
    if needs[0]:
        for_input = _empty(known.input_like)
        if not planned.is_covered:
            for_input.zero_()
        if weight.stride() != known.weight_like.stride():
            weight = _laid_like(weight, known.weight_like)
        for phase in planned.input:
            _convolve(phase, gradient, weight, None, for_input)
    if planned.weight is not None:
        if input.stride() != known.input_like.stride():
            input = _laid_like(input, known.input_like)
        if planned.weight.plan.task.channels_last and not known.forward.plan.task.channels_last:
            input, gradient = (
                expand_dimensions(each, known.dimensions).contiguous(
                    memory_format=torch.channels_last_3d
                )
                for each in (input, gradient)
            )
        for_weight = _empty(known.weight_like)
        _sum_windows(planned.weight, input, gradient, for_weight)
    return for_input, for_weight, for_bias


def _laid_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor with the strides of `like`: what was saved, or came from outside, may have others."""
    return _empty(like).copy_(tensor)


def _differentiate_by_operators(
    known: TrainedCall, gradient: Tensor, input: Tensor, weight: Tensor, needs: tuple[bool, ...]
) -> _Gradients:
    """The same as a graph that can be differentiated again and looked at."""
    for_input = for_weight = for_bias = None
    if needs[0]:
        for_input = convolution_grad_input(gradient, weight, input.shape[2:], *known.geometry)
    if needs[1]:
        for_weight = convolution_grad_weight(gradient, input, weight.shape[2:], *known.geometry)
    if needs[2]:
        for_bias = convolution_grad_bias(gradient)
    return for_input, for_weight, for_bias
