"""What is to be convolved: everything that a kernel is specialized on, and nothing else.

Batch and image size are not part of it, so one kernel serves every size.

>>> problem = ConvProblem(64, 128, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)))
>>> problem.output_sizes((1, 56, 56)), problem.window_values
((1, 56, 56), 576)
>>> problem.describe()
'64->128 1x3x3 padding (0,0)(1,1)(1,1) float32 contiguous'
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from shorthaul.errors import ConvolutionError

Triple = tuple[int, int, int]
Pair = tuple[int, int]

PADDING_MODES = ("zeros", "reflect", "replicate", "circular", "symmetric")
LAYOUTS = ("contiguous", "channels_last")
ACTIVATIONS = ("relu", "relu6", "hardswish", "silu", "gelu", "sigmoid", "tanh")
# What the kernels for CUDA devices are written for.
DEVICE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KERNEL_DTYPES = frozenset(
    (torch.float32, torch.float64, torch.bfloat16, torch.float16)
)  # the CPU's
NO_PADDING: tuple[Pair, Pair, Pair] = ((0, 0), (0, 0), (0, 0))


@dataclass(frozen=True)
class ConvProblem:
    """One convolution in canonical form: always three spatial dimensions (depth, height, width).

    A 1-D or 2-D convolution has leading ones, and its tensors have leading dimensions of size one:
    input (N, in_channels, D, H, W), weight (out_channels, in_channels / groups, kd, kh, kw), output
    (N, out_channels, D', H', W'). `layout` says how input and output lie in memory, without gaps:
    NCDHW for `contiguous`, NDHWC for `channels_last`. Weights come as the caller has them, also
    without the leading ones and in any strides: caches of packed weights know them by identity.
    """

    in_channels: int  # of all groups together
    out_channels: int  # of all groups together
    kernel: Triple  # depth, height, width, as all triples
    stride: Triple = (1, 1, 1)  # step between windows
    dilation: Triple = (1, 1, 1)  # step between taps
    padding: tuple[Pair, Pair, Pair] = NO_PADDING  # (low, high) per dimension
    padding_mode: str = "zeros"  # as in `sh.conv2d`
    groups: int = 1  # each with its own channels
    dtype: torch.dtype = torch.float32  # of input, weight and output
    layout: str = "contiguous"  # contiguous or channels_last
    has_bias: bool = False  # one number per output channel
    activation: str | None = None  # as in `sh.conv2d`
    exact: bool = True  # False allows a larger error: TF32 on CUDA; no kernel of the CPU uses it

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise ConvolutionError(f"non-positive groups is not supported, got {self.groups}.")
        for name in ("in_channels", "out_channels"):
            channels: int = getattr(self, name)
            if channels < 0 or channels % self.groups:
                raise ConvolutionError(
                    f"`{name}` ({channels}) must be divisible by `groups` ({self.groups})."
                )
        for name in ("kernel", "stride", "dilation"):
            values: Triple = getattr(self, name)
            if min(values) < 1:
                raise ConvolutionError(
                    f"`{name}` must be positive in every dimension, got {values}."
                )
        if min(side for pair in self.padding for side in pair) < 0:
            raise ConvolutionError(f"negative `padding` is not supported, got {self.padding}.")
        for name, known in (
            ("padding_mode", PADDING_MODES),
            ("layout", LAYOUTS),
            ("activation", (None, *ACTIVATIONS)),
        ):
            if getattr(self, name) not in known:
                raise ConvolutionError(
                    f"`{name}` must be one of {', '.join(map(str, known))}; "
                    f"got {getattr(self, name)!r}."
                )

    @property
    def in_channels_per_group(self) -> int:
        """Input channels that one output channel sees."""
        return self.in_channels // self.groups

    @property
    def out_channels_per_group(self) -> int:
        """Output channels that see the same input channels."""
        return self.out_channels // self.groups

    @property
    def window_values(self) -> int:
        """Values that are multiplied and summed for one output value: the K of the GEMM."""
        depth, height, width = self.kernel
        return self.in_channels_per_group * depth * height * width

    @property
    def weight_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the weight tensor."""
        return (self.out_channels, self.in_channels_per_group, *self.kernel)

    def output_sizes(self, input_sizes: Triple) -> Triple:
        """Spatial sizes of the output; `verify_input_sizes` says whether they make sense."""
        depth, height, width = (
            (size + low + high - dilation * (kernel - 1) - 1) // stride + 1
            for size, (low, high), kernel, stride, dilation in zip(
                input_sizes, self.padding, self.kernel, self.stride, self.dilation, strict=True
            )
        )
        return depth, height, width

    def padded_sizes(self, input_sizes: Triple) -> Triple:
        """Spatial sizes of the padded input."""
        depth, height, width = (
            size + low + high for size, (low, high) in zip(input_sizes, self.padding, strict=True)
        )
        return depth, height, width

    def without_padding(self, dtype: torch.dtype) -> ConvProblem:
        """The same convolution, in `dtype`, of images that are padded already."""
        return replace(self, padding=NO_PADDING, padding_mode="zeros", dtype=dtype)

    def verify_input_sizes(self, input_sizes: Triple) -> None:
        """Raise `ConvolutionError` where the window or the padding does not fit the input."""
        for dimension, (size, (low, high), kernel, dilation) in enumerate(
            zip(input_sizes, self.padding, self.kernel, self.dilation, strict=True)
        ):
            name = ("depth", "height", "width")[dimension]
            reach = dilation * (kernel - 1) + 1
            if size + low + high < reach:
                raise ConvolutionError(
                    f"the kernel is larger than the padded input: {name} is {size + low + high} "
                    f"({size} and padding {low}, {high}), but the kernel reaches over {reach}. "
                    "Kernel size can't be greater than actual input size."
                )
            limit = {"zeros": None, "replicate": None, "reflect": size - 1}.get(
                self.padding_mode, size
            )
            if limit is not None and max(low, high) > limit:
                raise ConvolutionError(
                    f"{self.padding_mode} padding of {name} may be at most {limit} for an input "
                    f"of size {size}, got ({low}, {high})."
                )
            if self.padding_mode == "replicate" and size == 0 and max(low, high) > 0:
                raise ConvolutionError(f"replicate padding of an empty {name} is not defined.")

    def flops(self, batch: int, input_sizes: Triple) -> int:
        """Floating-point operations of one forward pass, two per multiply and add.

        Args:
            batch: Number of images.
            input_sizes: Their depth, height and width.
        """
        depth, height, width = self.output_sizes(input_sizes)
        return 2 * batch * depth * height * width * self.out_channels * self.window_values

    def describe(self) -> str:
        """One line that names the problem completely; equal lines mean equal problems."""
        parts = [f"{self.in_channels}->{self.out_channels} {_times(self.kernel)}"]
        if self.stride != (1, 1, 1):
            parts.append(f"stride {_times(self.stride)}")
        if self.dilation != (1, 1, 1):
            parts.append(f"dilation {_times(self.dilation)}")
        if self.padding != NO_PADDING:
            mode = "" if self.padding_mode == "zeros" else f" {self.padding_mode}"
            sides = "".join(f"({low},{high})" for low, high in self.padding)
            parts.append(f"padding {sides}{mode}")
        elif self.padding_mode != "zeros":
            parts.append(self.padding_mode)
        if self.groups != 1:
            parts.append(f"groups {self.groups}")
        parts += [str(self.dtype).removeprefix("torch."), self.layout]
        if self.has_bias:
            parts.append("bias")
        if self.activation:
            parts.append(self.activation)
        if not self.exact:
            parts.append("inexact")
        return " ".join(parts)


def source_index(position: int, size: int, mode: str) -> int:
    """Where a padded position comes from; -1 for a zero.

    `position` counts from the first real value, so it is negative in the low padding and at least
    `size` in the high padding. This is the definition that every packer follows.

    >>> [source_index(position, 4, "reflect") for position in range(-2, 6)]
    [2, 1, 0, 1, 2, 3, 2, 1]
    >>> [source_index(position, 4, "symmetric") for position in range(-2, 6)]
    [1, 0, 0, 1, 2, 3, 3, 2]
    """
    if 0 <= position < size:
        return position
    if mode == "replicate":
        return 0 if position < 0 else size - 1
    if mode == "circular":
        return position % size
    if mode == "reflect":
        return -position if position < 0 else 2 * (size - 1) - position
    if mode == "symmetric":
        return -position - 1 if position < 0 else 2 * size - 1 - position
    return -1


def _times(values: Triple) -> str:
    return "x".join(map(str, values))
