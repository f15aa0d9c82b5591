"""What every convolution kernel takes: its tensors, its numbers as one array, its threads.

A call has some forty numbers. As arguments each costs a check and a conversion, together more than
a small convolution; as one array that is made when the call is planned, they cost nothing.

>>> print(emit_numbers(("thread_bytes", "batch")))
[[maybe_unused]] const int64_t thread_bytes = numbers[0], batch = numbers[1];
"""

from __future__ import annotations

import torch

from shorthaul.conv.geometry import KernelShape
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
    """A kernel's own numbers, the sizes of a call, and its shape unless that is constant."""
    return (*own, *SIZE_NAMES, *(SHAPE_NAMES if shape is None else ()))


def convolve_function(dtype: torch.dtype, numbers: tuple[str, ...]) -> Function:
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
            TensorArgument("numbers", torch.int64, (len(numbers),)),
            ThreadsArgument(),
        ),
    )


def sum_windows_function(dtype: torch.dtype, numbers: tuple[str, ...]) -> Function:
    """`sum_windows(input, gradient, weights, workspace, numbers)`; `weights` are packed."""
    return Function(
        "sum_windows",
        (
            TensorArgument("input", dtype, is_contiguous=False),
            TensorArgument("gradient", dtype, is_contiguous=False),
            TensorArgument("weights", sum_dtype(dtype), is_written=True),
            TensorArgument("workspace", torch.uint8, is_written=True),
            TensorArgument("numbers", torch.int64, (len(numbers),)),
            ThreadsArgument(),
        ),
    )


# The end of a kernel that sums weights in stretches: the first gets the others', in order.
ADD_STRETCHES = """\
  // The sums of the stretches, in order.
  for (int64_t stretch = 1; stretch < stretches; ++stretch) {
    for (int64_t each = 0; each < packed_values; ++each) weights[each] += weights[stretch * packed_values + each];
  }
"""


def emit_numbers(names: tuple[str, ...]) -> str:
    """The numbers of a call by their names."""
    values = ", ".join(f"{name} = numbers[{place}]" for place, name in enumerate(names))
    return f"[[maybe_unused]] const int64_t {values};"


def emit_sizes_and_shape(names: tuple[str, ...], shape: KernelShape | None) -> str:
    """The first lines of every kernel: its numbers, and the structures that headers take."""
    values = SHAPE_NAMES if shape is None else tuple(map(str, shape.values()))
    kind = "const" if shape is None else "constexpr"
    return f"""\
  {emit_numbers(names)}
  {kind} Shape shape{{{", ".join(values)}}};
  const Sizes sizes{{{", ".join(SIZE_NAMES)}}};"""
