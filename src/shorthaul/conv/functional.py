"""Convolutions as functions: `torch.nn.functional`'s arguments, and what it lacks.

Beyond PyTorch's: asymmetric padding as (low, high) pairs, every padding mode without a padded copy,
an activation and a residual in the same pass, and `out=`.

>>> import torch
>>> image, weight = torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)
>>> conv2d(image, weight, padding=((0, 2), (1, 1)), padding_mode="circular", activation="relu").shape
torch.Size([1, 4, 8, 8])
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.execution.fast_path import Written, learn_call, run_known
from shorthaul.conv.execution.operators import convolution, find_problem, run_convolution
from shorthaul.conv.problem import (
    ACTIVATIONS,
    KERNEL_DTYPES,
    ConvProblem,
    Triple,
)
from shorthaul.conv.problem.arguments import (
    Integers,
    Padding,
    canonical_padding,
    canonical_triple,
    drop_dimensions,
    expand_dimensions,
    verify_bias,
    verify_geometry,
    verify_input,
    verify_padding_mode,
    verify_same_kind,
    verify_weight,
)
from shorthaul.conv.problem.geometry import as_triple
from shorthaul.conv.readiness import Needs, can_prepare, find_needs, has_kernels, tune_call
from shorthaul.errors import ConvolutionError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.compiling.loading import is_waited_for
from shorthaul.jit.operators import (
    are_ordinary,
    is_plain,
    is_pushed_forward,
    is_traced,
    is_transformed,
    is_watched,
)
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.storage.protection import can_write


class Geometry(NamedTuple):
    """Canonical arguments, in the order in which the operators take them."""

    stride: Triple
    padding: tuple[int, ...]  # six numbers: low and high in turn
    dilation: Triple
    groups: int
    padding_mode: str


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Integers = 1,
    padding: Padding = 0,
    dilation: Integers = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    activation: str | None = None,
    residual: Tensor | None = None,
    exact: bool = True,
    tune: bool = False,
    wait: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """1-D convolution of (N, C, L) or (C, L). Its arguments are those of `conv2d`.

    >>> conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3), padding="same")
    tensor([[[2., 3., 3., 3., 2.]]])
    """
    written = (stride, padding, dilation, groups, padding_mode, activation, exact)
    return _run(1, input, weight, bias, written, residual, out, tune, wait)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Integers = 1,
    padding: Padding = 0,
    dilation: Integers = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    activation: str | None = None,
    residual: Tensor | None = None,
    exact: bool = True,
    tune: bool = False,
    wait: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """2-D convolution of (N, C, H, W) or (C, H, W): activation(input * weight + bias + residual).

    >>> conv2d(torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3), stride=2, padding=1).shape
    torch.Size([1, 3, 2, 2])

    Args:
        input: The images, with or without the batch dimension.
        weight: (out_channels, C / groups, kernel height, kernel width).
        bias: (out_channels,), or None for none (default).
        stride: Step between windows: one number, or one per dimension (default 1).
        padding: One number, one per dimension, a (low, high) pair per dimension, `"same"` or
            `"valid"` (default 0).
        dilation: Step between the taps of the kernel: one number, or one per dimension (default 1).
        groups: Groups of channels that are convolved apart (default 1).
        padding_mode: `"zeros"` (default), `"reflect"`, `"replicate"`, `"circular"` or
            `"symmetric"`.
        activation: Applied to the output in the same pass: `"relu"`, `"relu6"`, `"hardswish"`,
            `"silu"`, `"gelu"`, `"sigmoid"`, `"tanh"`, or None (default).
        residual: Added before the activation; it has the output's shape. None by default.
        exact: False allows arithmetic with a larger rounding error: row-wise Winograd on the CPU,
            TF32 in the generated CUDA kernels (default True).
        tune: Measure the kernels that apply to this size, once; the fastest is remembered for this
            processor, or for this GPU, where cuDNN takes part and is kept unless another is clearly
            faster (default False).
        wait: Wait for the compiler of kernels that are not there yet, of the call and of its gradients, but
            not where a call is traced, transformed or seen by a `TorchDispatchMode`. Without it the first calls run
            by ATen, whose sums have another order and other last bits, until the kernels are compiled
            in the background; `SHORTHAUL_COMPILE=wait` has all calls wait (default False).
        out: Receives the result, in place of a fresh tensor; it has the output's shape and dtype.
            For inference only: it has no gradient. None by default.
    """
    written = (stride, padding, dilation, groups, padding_mode, activation, exact)
    return _run(2, input, weight, bias, written, residual, out, tune, wait)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Integers = 1,
    padding: Padding = 0,
    dilation: Integers = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    activation: str | None = None,
    residual: Tensor | None = None,
    exact: bool = True,
    tune: bool = False,
    wait: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """3-D convolution of (N, C, D, H, W) or (C, D, H, W). Its arguments are those of `conv2d`.

    >>> conv3d(torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 3, 3, 3)).item()
    27.0
    """
    written = (stride, padding, dilation, groups, padding_mode, activation, exact)
    return _run(3, input, weight, bias, written, residual, out, tune, wait)


def _run(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    written: tuple[Any, ...],
    residual: Tensor | None,
    out: Tensor | None,
    tune: bool,
    wait: bool,
) -> Tensor:
    """The call as it is known already, else checked, planned, and known from then on."""
    if residual is None and out is None and not tune:
        output = run_known(dimensions, input, weight, bias, written)
        if output is not None:
            return output
    stay_alone_after_fork()  # calls that are known already ask for kernels' threads
    return _convolve(dimensions, input, weight, bias, Written(*written), residual, out, tune, wait)


def _geometry(dimensions: int, weight: Tensor, written: Written) -> Geometry:
    arguments = (dimensions, tuple(weight.shape[2:]), *written[:5])
    if torch.compiler.is_compiling():
        return read_geometry(*arguments)
    try:
        return _remembered_geometry(*arguments)
    except TypeError:  # lists cannot be remembered
        return read_geometry(*arguments)


def read_geometry(
    dimensions: int,
    kernel: tuple[int, ...],
    stride: Integers,
    padding: Padding,
    dilation: Integers,
    groups: int,
    padding_mode: str,
) -> Geometry:
    """The caller's stride, padding, dilation and groups in canonical form, or an error."""
    strides = canonical_triple("stride", stride, dimensions)
    dilations = canonical_triple("dilation", dilation, dimensions)
    verify_geometry(strides, dilations, groups)
    verify_padding_mode(padding_mode)
    if len(kernel) != dimensions:  # `verify_weight` says so in full; here only no crash
        kernel = (1,) * dimensions
    depth, height, width = (1,) * (3 - dimensions) + kernel
    pairs = canonical_padding(
        padding, dimensions, kernel=(depth, height, width), stride=strides, dilation=dilations
    )
    sides = tuple(side for pair in pairs for side in pair)
    return Geometry(strides, sides, dilations, groups, padding_mode)


_remembered_geometry = functools.lru_cache(maxsize=4096)(read_geometry)


def _convolve(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    written: Written,
    residual: Tensor | None,
    out: Tensor | None,
    tune: bool,
    wait: bool,
) -> Tensor:
    geometry = _geometry(dimensions, weight, written)
    activation, exact = written.activation, written.exact
    input, weight, bias, residual = autocast(input, weight, bias, residual)
    _verify(dimensions, input, weight, bias, geometry.groups, activation)
    is_batched = input.dim() == dimensions + 2
    images = expand_dimensions(input, dimensions)
    added = None if residual is None else expand_dimensions(residual, dimensions)
    if not weight.shape[1]:
        problem = problem_of(dimensions, input, weight, bias, geometry, activation, exact)
        output = aten.run_forward(problem, images, weight, bias, added)
        output = drop_dimensions(output, dimensions, is_batched)
        return output if out is None else _make_fit(out, output.shape, problem).copy_(output)
    is_seen = is_traced() or is_transformed()
    if input.dtype in KERNEL_DTYPES and not is_seen and are_ordinary(input, weight, bias):
        fused = _fuse(activation, input, weight, bias, residual)
        problem = problem_of(dimensions, input, weight, bias, geometry, fused, exact)
        needs = find_needs(input, weight, bias)
        if tune and not is_watched():
            tune_call(problem, replace(problem, activation=activation), images, needs)
        _ask_for_kernels(problem, images, needs, wait)
    if input.dtype in KERNEL_DTYPES and not is_plain(input, weight, bias, residual):
        if out is not None:
            raise ConvolutionError(
                "a convolution into `out=` has no gradient and no graph: leave `out` away, or "
                "call it under torch.no_grad()."
            )
        passed = (*geometry, choose_layout(input, weight, dimensions), exact)
        batches = [
            each if each is None or is_batched else each.unsqueeze(0) for each in (input, residual)
        ]
        output = _run_traced(batches[0], weight, bias, passed, activation, batches[1])
        output = output if is_batched else output.squeeze(0)
        if added is None and not is_watched() and are_ordinary(input, weight, bias):
            problem = problem_of(dimensions, input, weight, bias, geometry, exact=exact)
            learn_call(dimensions, input, weight, bias, written, problem, passed, images, output)
        return output
    problem = problem_of(dimensions, input, weight, bias, geometry, activation, exact)
    if out is not None:
        sizes = problem.output_sizes(as_triple(images.shape[2:]))[3 - dimensions :]
        batch = images.shape[:1] if is_batched else ()
        _make_fit(out, (*batch, problem.out_channels, *sizes), problem)
        _run_into(expand_dimensions(out, dimensions), problem, images, weight, bias, added)
        return out
    run = run_convolution if input.dtype in KERNEL_DTYPES else _run_other_dtype
    output = drop_dimensions(run(problem, images, weight, bias, added), dimensions, is_batched)
    if residual is None:
        passed = (*geometry, problem.layout, exact)
        learn_call(dimensions, input, weight, bias, written, problem, passed, images, output)
    return output


def _fuse(activation: str | None, *tensors: Tensor | None) -> str | None:
    """The activation that is part of the convolution: a derivative needs the value before it."""
    return activation if not torch.is_grad_enabled() or is_plain(*tensors) else None


def _ask_for_kernels(problem: ConvProblem, images: Tensor, needs: Needs, wait: bool) -> None:
    """Those of all passes at once, so that they are compiled several at a time."""
    batch, _, depth, height, width = images.shape
    problem.verify_input_sizes((depth, height, width))
    if can_prepare(problem, images):
        sizes = (batch, depth, height, width)
        has_kernels(problem, sizes, needs, waits=is_waited_for(by_default=wait))


def problem_of(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    activation: str | None = None,
    exact: bool = True,
) -> ConvProblem:
    """The problem that these arguments of `conv1d`, `conv2d` or `conv3d` pose."""
    return find_problem(
        input.shape[-1 - dimensions],
        weight.shape[0],
        as_triple(weight.shape[2:]),
        *geometry,
        choose_layout(input, weight, dimensions),
        exact,
        input.dtype,
        bias is not None,
        activation,
    )


def _verify(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    activation: str | None,
) -> None:
    verify_weight(weight, dimensions, groups)
    verify_input(input, weight, dimensions, weight.shape[1] * groups, groups)
    verify_same_kind("weight", weight, input)
    if bias is not None:
        verify_same_kind("bias", bias, input)
        verify_bias(bias, weight, weight.shape[0])
    if activation is not None and activation not in ACTIVATIONS:
        raise ConvolutionError(
            f"activation must be None or one of {', '.join(ACTIVATIONS)}, but got {activation!r}."
        )


def _make_fit(out: Tensor, shape: Sequence[int], problem: ConvProblem) -> Tensor:
    """`out`, given its shape if it has no elements, as PyTorch does; any other that is not right is refused."""
    if out.dtype != problem.dtype or (out.numel() and tuple(out.shape) != tuple(shape)):
        raise ConvolutionError(
            f"`out` must be {problem.dtype} of shape {tuple(shape)}, or have no elements; got "
            f"{out.dtype} of shape {tuple(out.shape)}."
        )
    if out.is_cpu and out.numel() and not can_write(out):
        raise ConvolutionError("`out` lies in read-only memory: give a tensor of its own.")
    if tuple(out.shape) != tuple(shape):
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        is_last = problem.layout == "channels_last"
        out.resize_(tuple(shape), memory_format=last if is_last else torch.contiguous_format)
    return out


def _run_into(
    target: Tensor,
    problem: ConvProblem,
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
) -> None:
    memory = target.untyped_storage().data_ptr()
    is_apart = all(
        each is None or each.untyped_storage().data_ptr() != memory
        for each in (images, weight, bias, residual)
    )
    is_dense = target.is_contiguous(memory_format=aten.memory_format(problem))
    if is_dense and is_apart and images.numel():
        run_convolution(problem, images, weight, bias, residual, target)
        torch.autograd.graph.increment_version(target)  # a graph that kept it must not go on
    else:
        target.copy_(run_convolution(problem, images, weight, bias, residual))


def _run_other_dtype(
    problem: ConvProblem,
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
) -> Tensor:
    """By ATen with its own autograd: complex gradients need conjugates, integers have none."""
    note_fallback("convolution", "ATen", f"{images.dtype} has no generated kernel")
    return aten.run_forward(problem, images, weight, bias, residual)


def _run_traced(
    batch: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: tuple[Any, ...],
    activation: str | None,
    residual: Tensor | None,
) -> Tensor:
    """Through the dispatcher, for autograd, tracing and transforms.

    A derivative needs the value before the activation, so the two are fused only where none is wanted;
    otherwise autograd sees the activation as a step of its own.
    """
    is_differentiated = torch.is_grad_enabled() or is_pushed_forward()
    fused = None if is_differentiated else activation
    output: Tensor = convolution(batch, weight, bias, *geometry, fused, residual)
    return output if fused == activation else aten.apply_activation(output, activation)


def autocast(*tensors: Tensor | None) -> Any:
    """The tensors as an autocast region wants them, as it treats PyTorch's own convolution."""
    device = tensors[0].device.type if tensors[0] is not None else "cpu"
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        each.to(dtype)
        if each is not None and each.is_floating_point() and each.dtype != torch.float64
        else each
        for each in tensors
    )


def choose_layout(input: Tensor, weight: Tensor, dimensions: int) -> str:
    """How the output lies in memory: channels last if the input or the weight does, as in PyTorch."""
    if dimensions == 1 or input.dim() != dimensions + 2:
        return "contiguous"
    is_last = _is_channels_last(input) or _is_channels_last(weight)
    return "channels_last" if is_last else "contiguous"


def _is_channels_last(tensor: Tensor) -> bool:
    """PyTorch's reading of a tensor's strides, which tells the layouts apart where sizes are one, too.

    >>> image = torch.ones(2, 1, 4, 4)
    >>> _is_channels_last(image), _is_channels_last(image.to(memory_format=torch.channels_last))
    (False, True)
    """
    sizes, strides = tensor.shape, tensor.stride()
    if strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if sizes[axis] == 0 or strides[axis] < least:
            return False
        if axis == 0 and least == strides[1]:  # nothing but channels of one value
            return False
        least = strides[axis] * max(1, sizes[axis])
    return True
