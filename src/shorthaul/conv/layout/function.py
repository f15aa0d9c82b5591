"""What every convolution kernel takes: its tensors, its numbers as one array, its threads.

A call has some forty numbers. As arguments each costs a check and a conversion, together more than
a small convolution; as one array that is made when the call is planned, they cost nothing.
"""

from __future__ import annotations

import torch

from shorthaul.conv.problem.geometry import KernelShape
from shorthaul.jit import Function, TensorArgument, ThreadsArgument

SHAPE_NAMES = (
    "in_channels", "out_channels", "groups",
    "kernel_d", "kernel_h", "kernel_w",
    "stride_d", "stride_h", "stride_w",
    "dilation_d", "dilation_h", "dilation_w",
)  # fmt: skip
SIZE_NAMES = (
    "batch",
    "in_d", "in_h", "in_w",
    "out_d", "out_h", "out_w",
    "padding_d", "padding_h", "padding_w", "padding_mode",
    "full_d", "full_h", "full_w",
    "step_d", "step_h", "step_w",
    "first_d", "first_h", "first_w",
)  # fmt: skip


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What values of `dtype` are summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def number_names(own: tuple[str, ...], shape: KernelShape | None) -> tuple[str, ...]:
    """A kernel's own numbers, the sizes of a call, and what of its shape is not constant."""
    return (*own, *SIZE_NAMES, *SHAPE_NAMES[: count_variable(shape)])


def count_variable(shape: KernelShape | None) -> int:
    """How many of a shape's values, from the first on, a kernel reads that was compiled for `shape`.

    Args:
        shape: What is constant in it: all, all but the channels, or nothing (None).
    """
    if shape is None:
        return len(SHAPE_NAMES)
    return 0 if shape.has_channels else SHAPE_NAMES.index("kernel_d")


def convolve_function(dtype: torch.dtype) -> Function:
    """`convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    real = sum_dtype(dtype)
    return Function(
        "convolve",
        (
            TensorArgument("input", dtype, is_contiguous=False),
            TensorArgument("weights", real),
            TensorArgument("bias", real, is_optional=True),
            TensorArgument("residual", dtype, is_contiguous=False, is_optional=True),
            TensorArgument("output", dtype, is_written=True, is_contiguous=False),
            TensorArgument("workspace", torch.uint8, is_written=True),
            TensorArgument("numbers", torch.int64),
            ThreadsArgument(),
        ),
    )


def sum_windows_function(dtype: torch.dtype) -> Function:
    """`sum_windows(input, gradient, weights, workspace, numbers)`; `weights` are packed."""
    return Function(
        "sum_windows",
        (
            TensorArgument("input", dtype, is_contiguous=False),
            TensorArgument("gradient", dtype, is_contiguous=False),
            TensorArgument("weights", sum_dtype(dtype), is_written=True),
            TensorArgument("workspace", torch.uint8, is_written=True),
            TensorArgument("numbers", torch.int64),
            ThreadsArgument(),
        ),
    )
