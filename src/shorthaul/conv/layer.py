"""Drop-in convolution layers: `torch.nn`'s parameters and `state_dict`, shorthaul's kernels.

>>> import torch
>>> layer = Conv2d(3, 8, 3, padding=((0, 1), (1, 1)), padding_mode="symmetric", activation="relu")
>>> layer(torch.ones(1, 3, 6, 6)).shape, sorted(layer.state_dict())
(torch.Size([1, 8, 5, 6]), ['bias', 'weight'])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from shorthaul.conv.functional import conv1d, conv2d, conv3d
from shorthaul.conv.problem import ACTIVATIONS
from shorthaul.conv.problem.arguments import (
    Integers,
    Padding,
    canonical_padding,
    canonical_triple,
    verify_padding_mode,
)
from shorthaul.errors import ConvolutionError

# What PyTorch's constructors know. Anything else is given to them as zero padding and set after.
_TORCH_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class WindowOrderLayer(nn.Module):
    """What the three layers have in common; `nn.Conv*d` stands after it in their bases.

    The attributes have defaults in the class, so that an `nn.Conv2d` becomes a `Conv2d` by a change
    of its class alone, with parameters, hooks and identity kept (see `replace_convs`).
    """

    dimensions: ClassVar[int]
    convolve: ClassVar[Callable[..., Tensor]]
    activation: str | None = None
    exact: bool = True
    tune: bool = False
    wait: bool = False

    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int
    padding_mode: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Integers,
        stride: Integers = 1,
        padding: Padding = 0,
        dilation: Integers = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        exact: bool = True,
        tune: bool = False,
        wait: bool = False,
    ) -> None:
        is_known = padding_mode in _TORCH_PADDING_MODES and (
            isinstance(padding, str | int) or all(isinstance(each, int) for each in padding)
        )
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding if is_known else 0,
            dilation,
            groups,
            bias,
            padding_mode if is_known else "zeros",
            device,
            dtype,
        )
        if activation not in (None, *ACTIVATIONS):
            raise ConvolutionError(
                f"activation must be None or one of {', '.join(ACTIVATIONS)}, got {activation!r}."
            )
        self.activation, self.exact, self.tune, self.wait = activation, exact, tune, wait
        if not is_known:
            self._set_padding(padding, padding_mode, kernel_size)

    def _set_padding(self, padding: Padding, padding_mode: str, kernel_size: Integers) -> None:
        """Padding of a form or mode that PyTorch's constructor refuses."""
        verify_padding_mode(padding_mode)
        pairs = canonical_padding(
            padding,
            self.dimensions,
            kernel=canonical_triple("kernel_size", kernel_size, self.dimensions),
            stride=canonical_triple("stride", self.stride, self.dimensions),
            dilation=canonical_triple("dilation", self.dilation, self.dimensions),
        )
        self.padding, self.padding_mode = pairs[3 - self.dimensions :], padding_mode

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.run(input, weight, bias, self.activation)

    def run(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> Tensor:
        """The layer's convolution with these tensors in place of its own."""
        return type(self).convolve(
            input,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            padding_mode=self.padding_mode,
            activation=activation,
            exact=self.exact,
            tune=self.tune,
            wait=self.wait,
        )

    def extra_repr(self) -> str:
        """As PyTorch's, with what it does not know."""
        words = super().extra_repr()
        if self.activation is not None:
            words += f", activation={self.activation}"
        if not self.exact:
            words += ", exact=False"
        return f"{words}, tune=True" if self.tune else words


class Conv1d(WindowOrderLayer, nn.Conv1d):
    """`torch.nn.Conv1d` by shorthaul's kernels. Its arguments are those of `Conv2d`."""

    dimensions = 1
    convolve = staticmethod(conv1d)


class Conv2d(WindowOrderLayer, nn.Conv2d):
    """`torch.nn.Conv2d` by shorthaul's kernels.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: One number, or one per dimension.
        stride: Step between windows: one number, or one per dimension (default 1).
        padding: One number, one per dimension, a (low, high) pair per dimension, `"same"` or
            `"valid"` (default 0).
        dilation: Step between the taps of the kernel (default 1).
        groups: Groups of channels that are convolved apart (default 1).
        bias: Whether the layer has a bias (default True).
        padding_mode: As in `sh.conv2d` (default `"zeros"`).
        device: Where the parameters lie; None takes PyTorch's default.
        dtype: Of the parameters; None takes PyTorch's default.
        activation: Applied to the output in the same pass, as in `sh.conv2d`; None by default.
        exact: False allows arithmetic with a larger rounding error (default True).
        tune: Measure the kernels at the first call of each size (default False).
        wait: Wait for the compiler, as in `sh.conv2d` (default False).
    """

    dimensions = 2
    convolve = staticmethod(conv2d)


class Conv3d(WindowOrderLayer, nn.Conv3d):
    """`torch.nn.Conv3d` by shorthaul's kernels. Its arguments are those of `Conv2d`."""

    dimensions = 3
    convolve = staticmethod(conv3d)
