"""The arguments that every convolution kernel has."""

from __future__ import annotations

import torch

from shorthaul.conv.layout.function import (
    SHAPE_NAMES,
    SIZE_NAMES,
    convolve_function,
    number_names,
    sum_dtype,
    sum_windows_function,
)
from shorthaul.conv.problem.geometry import KernelShape

SHAPE = KernelShape(3, 8, 1, (1, 3, 5), (1, 1, 2), (1, 1, 1))


def test_general_kernels_are_told_their_shape_and_special_ones_are_not() -> None:
    assert number_names(("own",), None) == ("own", *SIZE_NAMES, *SHAPE_NAMES)
    assert number_names(("own",), SHAPE) == ("own", *SIZE_NAMES)


def test_the_array_of_numbers_has_their_length() -> None:
    names = number_names(("own",), SHAPE)
    for function in (
        convolve_function(torch.bfloat16, names),
        sum_windows_function(torch.bfloat16, names),
    ):
        numbers = function.arguments[-2]
        assert numbers.name == "numbers"
        assert numbers.shape == (len(names),)  # type: ignore[union-attr]


def test_low_precision_is_summed_in_single_precision() -> None:
    assert sum_dtype(torch.bfloat16) == sum_dtype(torch.float16) == torch.float32
    assert sum_dtype(torch.float64) == torch.float64
