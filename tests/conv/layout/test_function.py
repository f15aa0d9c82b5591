"""The arguments that every convolution kernel has."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import torch

from shorthaul.conv.layout.function import (
    SHAPE_NAMES,
    SIZE_NAMES,
    number_names,
    sum_dtype,
)
from shorthaul.conv.problem.geometry import KernelShape

SHAPE = KernelShape(3, 8, 1, (1, 3, 5), (1, 1, 2), (1, 1, 1))


def test_general_kernels_are_told_their_shape_and_special_ones_are_not() -> None:
    assert number_names(("own",), None) == ("own", *SIZE_NAMES, *SHAPE_NAMES)
    assert number_names(("own",), SHAPE) == ("own", *SIZE_NAMES)
    channels = ("in_channels", "out_channels", "groups")
    assert number_names(("own",), SHAPE.without_channels()) == ("own", *SIZE_NAMES, *channels)


@pytest.mark.parametrize(("struct", "names"), [("Shape", SHAPE_NAMES), ("Sizes", SIZE_NAMES)])
def test_the_structures_of_headers_have_the_names_of_the_numbers(
    struct: str, names: tuple[str, ...]
) -> None:
    header = resources.files("shorthaul.conv.methods").joinpath("geometry.h").read_text()
    body = header.partition(f"struct {struct} {{")[2]
    fields = [
        name.strip()
        for line in re.findall(r"^  int64_t ([a-z_, ]+);$", body.partition("()")[0], re.MULTILINE)
        for name in line.split(",")
    ]
    assert tuple(fields) == names


def test_low_precision_is_summed_in_single_precision() -> None:
    assert sum_dtype(torch.bfloat16) == sum_dtype(torch.float16) == torch.float32
    assert sum_dtype(torch.float64) == torch.float64
