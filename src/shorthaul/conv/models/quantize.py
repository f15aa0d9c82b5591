"""int8 weights for inference: a quarter of the bytes, one scale per output channel.

>>> from torch import nn
>>> model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU()).eval()
>>> report = quantize_weights(model)
>>> report.layers[0].bytes_before, report.layers[0].bytes_after, report.layers[0].error < 0.01
(18432, 4736, True)
>>> sorted(model.state_dict())
['0.bias', '0.weight', '0.weight_scale']

Values are widened and scaled while weights are packed for a kernel, once; products and sums are those of
the floating-point kernels, so the only error is that of rounding the weights.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor, nn

from shorthaul.conv.execution import execute as kernels
from shorthaul.conv.execution.backend import reason_for_aten
from shorthaul.conv.functional import problem_of, read_geometry
from shorthaul.conv.layer import Conv1d, Conv2d, Conv3d, WindowOrderLayer
from shorthaul.conv.problem.arguments import drop_dimensions, expand_dimensions
from shorthaul.errors import ConvolutionError, KernelPendingError
from shorthaul.jit.operators import is_plain
from shorthaul.report_table import layer_table
from shorthaul.units import format_bytes

LARGEST = 127  # symmetric: -128 is not used, so that a weight and its negative round alike


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values and the scale of each output channel: weight is about values * scale.

    >>> values, scale = quantize(torch.tensor([[[-1.0, 0.5]], [[0.0, 0.0]]]))
    >>> values.tolist(), [round(each, 5) for each in scale.tolist()]
    ([[[-127, 64]], [[0, 0]]], [0.00787, 0.0])
    """
    largest = weight.detach().flatten(1).abs().amax(1) if weight.numel() else weight.new_zeros(0)
    scale = largest.float() / LARGEST
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    values = weight.detach().float() / _per_channel(divisor, weight)
    return values.round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def widen(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights that int8 values stand for."""
    return (values.float() * _per_channel(scale, values)).to(dtype)


def _per_channel(scale: Tensor, like: Tensor) -> Tensor:
    return scale.view(-1, *(1,) * (like.dim() - 1))


class Int8Layer(WindowOrderLayer):
    """A convolution whose `weight` is a buffer of int8 values, with a buffer `weight_scale`."""

    weight: Any
    weight_scale: Tensor
    bias: Tensor | None

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        geometry = read_geometry(
            self.dimensions, tuple(weight.shape[2:]), self.stride, self.padding, self.dilation,
            self.groups, self.padding_mode,
        )  # fmt: skip
        can_use_packed = (
            is_plain(input, weight, bias)
            and not torch.is_autocast_enabled(input.device.type)
            and input.device.type == "cpu"
            and input.dim() in (self.dimensions + 1, self.dimensions + 2)
            and input.shape[-1 - self.dimensions] == weight.shape[1] * self.groups
            and (bias is None or bias.dtype == input.dtype)
            and input.numel() > 0
        )
        if can_use_packed:
            problem = problem_of(
                self.dimensions, input, weight, bias, geometry, self.activation, self.exact
            )
            images = expand_dimensions(input, self.dimensions)
            depth, height, width = images.shape[2:]
            problem.verify_input_sizes((depth, height, width))
            if reason_for_aten(problem, "cpu") is None:
                last = problem.layout == "channels_last"
                images = images.contiguous(
                    memory_format=torch.channels_last_3d if last else torch.contiguous_format
                )
                with contextlib.suppress(KernelPendingError):
                    output = kernels.run_forward(
                        problem, images, weight, bias, weight_scale=self.weight_scale
                    )
                    is_batched = input.dim() == self.dimensions + 2
                    return drop_dimensions(output, self.dimensions, is_batched)
        return self.run(input, widen(weight, self.weight_scale, input.dtype), bias, self.activation)


class Int8Conv1d(Int8Layer, Conv1d):
    """`nn.Conv1d` with int8 weights."""


class Int8Conv2d(Int8Layer, Conv2d):
    """`nn.Conv2d` with int8 weights."""


class Int8Conv3d(Int8Layer, Conv3d):
    """`nn.Conv3d` with int8 weights."""


_INT8: dict[type[nn.Module], type[Int8Layer]] = {
    nn.Conv1d: Int8Conv1d,
    nn.Conv2d: Int8Conv2d,
    nn.Conv3d: Int8Conv3d,
    Conv1d: Int8Conv1d,
    Conv2d: Int8Conv2d,
    Conv3d: Int8Conv3d,
}


@dataclass(frozen=True)
class QuantizedLayer:
    """What became of one layer's weights."""

    name: str  # its path in the model
    bytes_before: int  # of the weights
    bytes_after: int  # values and scales
    error: float  # of the weights, relative to the largest of each output channel; the worst one


@dataclass(frozen=True)
class QuantizationReport:
    """What `quantize_weights` did."""

    layers: tuple[QuantizedLayer, ...]
    headings: ClassVar[tuple[str, ...]] = ("layer", "before", "after", "largest error")

    def summary(self) -> str:
        """One line, for logs."""
        before, after = (
            format_bytes(sum(getattr(each, name) for each in self.layers))
            for name in ("bytes_before", "bytes_after")
        )
        return f"{len(self.layers):,} convolutions with int8 weights: {before} before, {after} now"

    def table(self) -> Table:
        """A table for `rich.print`, which fits 80 columns."""
        table = layer_table(self.summary(), *self.headings, numbers=frozenset(self.headings[1:]))
        for each in self.layers:
            sizes = (format_bytes(each.bytes_before), format_bytes(each.bytes_after))
            table.add_row(each.name, *sizes, f"{each.error:.2%}")
        return table


def quantize_weights(model: nn.Module) -> QuantizationReport:
    """Round the weights of all convolutions of `model` to int8, in place, for inference.

    Layers keep their names and hooks. `state_dict` has the int8 values as `weight` and a
    `weight_scale` beside them; a model that was quantized the same way loads it. Layers can no
    longer be trained. Subclasses that are not PyTorch's or shorthaul's own are left as they are.
    """
    layers = []
    for name, module in model.named_modules():
        if type(module) in _INT8:
            layers.append(_quantize_layer(name, module))
    if not layers:
        raise ConvolutionError(
            "there is no convolution to quantize: expected nn.Conv1d, nn.Conv2d or nn.Conv3d (or "
            f"shorthaul's) in {type(model).__name__}. Quantize before `replace_convs`."
        )
    return QuantizationReport(tuple(layers))


def _quantize_layer(name: str, module: Any) -> QuantizedLayer:
    weight: Tensor = module.weight
    values, scale = quantize(weight)
    restored = widen(values, scale, torch.float32)
    largest = _per_channel((scale * LARGEST).clamp_min(torch.finfo(torch.float32).tiny), weight)
    error = ((restored - weight.detach().float()) / largest).abs()
    layer = QuantizedLayer(
        name,
        weight.numel() * weight.element_size(),
        values.numel() + scale.numel() * 4,
        float(error.max()) if error.numel() else 0.0,
    )
    if weight.is_contiguous(memory_format=torch.channels_last) and weight.dim() == 4:
        values = values.contiguous(memory_format=torch.channels_last)
    del module.weight
    module.register_buffer("weight", values)
    module.register_buffer("weight_scale", scale)
    if module.bias is not None:
        module.bias.requires_grad_(False)
    module.__class__ = _INT8[type(module)]
    return layer
