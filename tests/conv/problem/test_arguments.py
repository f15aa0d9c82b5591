"""Forms of arguments that are accepted, and those that are refused with PyTorch's words."""

from typing import Any

import pytest
import torch

from shorthaul.conv.problem.arguments import (
    canonical_padding,
    canonical_triple,
    verify_bias,
    verify_geometry,
    verify_input,
    verify_same_kind,
    verify_weight,
)
from shorthaul.errors import ConvolutionError

ONES = (1, 1, 1)


@pytest.mark.parametrize(
    ("value", "dimensions", "expected"),
    [
        (2, 1, (1, 1, 2)),
        (2, 2, (1, 2, 2)),
        (2, 3, (2, 2, 2)),
        ((3,), 2, (1, 3, 3)),
        ([3, 4], 2, (1, 3, 4)),
        (torch.Size([2, 3, 4]), 3, (2, 3, 4)),
    ],
)
def test_numbers_become_three(value: Any, dimensions: int, expected: tuple[int, ...]) -> None:
    assert canonical_triple("stride", value, dimensions) == expected


def test_dimensions_that_the_caller_lacks_can_be_zero() -> None:
    assert canonical_triple("output_padding", 1, 2, leading=0) == (0, 1, 1)


@pytest.mark.parametrize("value", [(1, 1, 1), (), (1.5, 1)])
def test_wrong_counts_are_refused(value: Any) -> None:
    with pytest.raises(
        ConvolutionError,
        match="expected stride to be a single integer value or a list of 2 values to match",
    ):
        canonical_triple("stride", value, 2)


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        (1, ((0, 0), (1, 1), (1, 1))),
        ((2,), ((0, 0), (2, 2), (2, 2))),
        ((1, 2), ((0, 0), (1, 1), (2, 2))),
        (((1, 0), (2, 3)), ((0, 0), (1, 0), (2, 3))),
        (((1, 2),), ((0, 0), (1, 2), (1, 2))),
        ((1, (2, 3)), ((0, 0), (1, 1), (2, 3))),
        ("valid", ((0, 0), (0, 0), (0, 0))),
        ("same", ((0, 0), (1, 2), (2, 2))),  # kernel 4 and 3, the latter dilated by 2
    ],
)
def test_every_form_of_padding(padding: Any, expected: tuple[tuple[int, int], ...]) -> None:
    got = canonical_padding(padding, 2, kernel=(1, 4, 3), stride=ONES, dilation=(1, 1, 2))
    assert got == expected


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        ("full", "Invalid padding string: 'full'; it can be 'same' or 'valid'"),
        ((1, 2, 3), "expected padding to be a single integer value, a list of 2 values"),
        (((1, 2, 3), 1), "asymmetric padding is \\(low, high\\) for each dimension"),
        (-1, "negative padding is not supported, got padding=-1"),
        (((0, -1), 0), "negative padding is not supported"),
    ],
)
def test_wrong_padding_is_refused(padding: Any, message: str) -> None:
    with pytest.raises(ConvolutionError, match=message):
        canonical_padding(padding, 2, kernel=(1, 3, 3), stride=ONES, dilation=ONES)


def test_same_padding_needs_stride_one() -> None:
    with pytest.raises(ConvolutionError, match="'same' is not supported for strided"):
        canonical_padding("same", 2, kernel=(1, 3, 3), stride=(1, 2, 1), dilation=ONES)


@pytest.mark.parametrize(
    ("stride", "dilation", "groups", "message"),
    [
        ((1, 0, 1), ONES, 1, "non-positive stride is not supported"),
        (ONES, (1, 1, -1), 1, "dilation should be greater than zero"),
        (ONES, ONES, 0, "non-positive groups is not supported"),
    ],
)
def test_geometry_without_meaning_is_refused(
    stride: Any, dilation: Any, groups: int, message: str
) -> None:
    with pytest.raises(ConvolutionError, match=message):
        verify_geometry(stride, dilation, groups)


@pytest.mark.parametrize(
    ("shape", "groups", "message"),
    [
        ((4, 2, 3), 1, "conv2d takes 4: \\(out_channels, in_channels / groups, \\*kernel\\)"),
        ((2, 2, 3, 3), 3, "expected weight to be at least 3 at dimension 0"),
        ((5, 2, 3, 3), 2, "expected weight to be divisible by 2 at dimension 0"),
        ((5, 2, 0, 3), 1, "kernel size should be greater than zero, but got \\[0, 3\\]"),
    ],
)
def test_wrong_weights_are_refused(shape: tuple[int, ...], groups: int, message: str) -> None:
    with pytest.raises(ConvolutionError, match=message):
        verify_weight(torch.zeros(shape), 2, groups)


def test_inputs_must_fit_the_weight() -> None:
    weight = torch.zeros(4, 2, 3, 3)
    with pytest.raises(ConvolutionError, match=r"Expected 3D \(unbatched\) or 4D"):
        verify_input(torch.zeros(5, 5), weight, 2, 2, 1)
    with pytest.raises(ConvolutionError, match="to have 2 channels, but got 3 channels instead"):
        verify_input(torch.zeros(1, 3, 5, 5), weight, 2, 2, 1)
    verify_input(torch.zeros(2, 5, 5), weight, 2, 2, 1)


def test_dtypes_and_devices_must_agree() -> None:
    image = torch.zeros(1)
    with pytest.raises(ConvolutionError, match=r"bias type \(torch\.float64\) should be the same"):
        verify_same_kind("bias", torch.zeros(1, dtype=torch.float64), image)
    with pytest.raises(ConvolutionError, match="weight device \\(meta\\) should be the same"):
        verify_same_kind("weight", torch.zeros(1, device="meta"), image)


@pytest.mark.parametrize("shape", [(3,), (4, 1), ()])
def test_a_bias_has_one_value_per_channel(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConvolutionError, match="expected bias to be 1-dimensional with 4 elements"):
        verify_bias(torch.zeros(shape), torch.zeros(4, 2, 3, 3), 4)
