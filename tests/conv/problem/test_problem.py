"""The canonical description of a convolution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.conv.problem import PADDING_MODES, ConvProblem, source_index
from shorthaul.errors import ConvolutionError
from tests.conv.problems import Case, cases
from tests.conv.tolerances import require_close


def test_the_comparison_fails_on_unequal_values() -> None:
    ones = torch.ones(3)
    require_close(ones + 1e-6, ones)
    with pytest.raises(AssertionError, match="error 0\\.001"):
        require_close(ones + 1e-3, ones)
    with pytest.raises(AssertionError, match="NaNs"):
        require_close(torch.tensor([1.0, torch.nan]), torch.ones(2))
    with pytest.raises(AssertionError, match="infinities"):
        require_close(torch.ones(2), torch.tensor([1.0, torch.inf]))
    with pytest.raises(AssertionError, match="is not"):
        require_close(torch.ones(2), torch.ones(3))


@settings(deadline=None, max_examples=60)
@given(cases())
def test_output_sizes_are_those_of_torch(case: Case) -> None:
    image, weight, _ = case.tensors()
    problem = case.problem
    padded = torch.nn.functional.pad(
        image, [side for pair in problem.padding[::-1] for side in pair]
    )
    output = torch.conv3d(padded, weight, None, problem.stride, 0, problem.dilation, problem.groups)
    problem.verify_input_sizes(case.sizes)
    assert problem.output_sizes(case.sizes) == tuple(output.shape[2:])
    assert problem.flops(case.batch, case.sizes) == 2 * output.numel() * weight[0].numel()


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(PADDING_MODES), st.integers(1, 6), st.data())
def test_padding_comes_from_where_torch_takes_it(mode: str, size: int, data: st.DataObject) -> None:
    limit = {"reflect": size - 1, "zeros": 5, "replicate": 5}.get(mode, size)
    low, high = (data.draw(st.integers(0, limit)) for _ in range(2))
    values = torch.arange(1.0, size + 1)
    positions = [source_index(position, size, mode) for position in range(-low, size + high)]
    ours = torch.tensor([0.0 if index < 0 else float(values[index]) for index in positions])
    if mode == "symmetric":  # torch has none: mirrored with the edge itself
        expected = torch.cat([values[:low].flip(0), values, values[size - high :].flip(0)])
    else:
        name = "constant" if mode == "zeros" else mode
        expected = torch.nn.functional.pad(values.view(1, 1, -1), (low, high), mode=name).view(-1)
    assert ours.tolist() == expected.tolist()


def test_equal_lines_mean_equal_problems() -> None:
    base = ConvProblem(4, 8, (1, 3, 3))
    changed = {
        "in_channels": 2,
        "out_channels": 4,
        "kernel": (1, 3, 1),
        "stride": (1, 2, 1),
        "dilation": (1, 2, 1),
        "padding": ((0, 0), (0, 1), (0, 0)),
        "padding_mode": "reflect",
        "groups": 2,
        "dtype": torch.float64,
        "layout": "channels_last",
        "has_bias": True,
        "activation": "relu",
        "exact": False,
    }
    lines = {base.describe()}
    for name, value in changed.items():
        lines.add(ConvProblem(**{**vars(base), name: value}).describe())
    assert len(lines) == len(changed) + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 0}, "non-positive groups is not supported, got 0."),
        ({"groups": 3}, "`in_channels` \\(4\\) must be divisible by `groups` \\(3\\)."),
        ({"kernel": (1, 0, 3)}, "`kernel` must be positive in every dimension"),
        ({"stride": (1, 0, 1)}, "`stride` must be positive in every dimension"),
        ({"padding": ((0, 0), (-1, 0), (0, 0))}, "negative `padding` is not supported"),
        ({"padding_mode": "wrap"}, "`padding_mode` must be one of zeros, reflect"),
        ({"layout": "nhwc"}, "`layout` must be one of contiguous, channels_last; got 'nhwc'"),
        ({"activation": "mish"}, "`activation` must be one of None, relu"),
    ],
)
def test_problems_that_mean_nothing_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConvolutionError, match=message):
        ConvProblem(**{**vars(ConvProblem(4, 8, (1, 3, 3))), **changes})


@pytest.mark.parametrize(
    ("mode", "sizes", "message"),
    [
        ("zeros", (1, 1, 5), "height is 3 \\(1 and padding 1, 1\\), but the kernel reaches over 5"),
        ("reflect", (1, 5, 2), "reflect padding of width may be at most 1 for an input of size 2"),
        ("circular", (1, 5, 1), "circular padding of width may be at most 1"),
        ("symmetric", (1, 5, 1), "symmetric padding of width may be at most 1"),
        ("replicate", (1, 5, 0), "replicate padding of an empty width"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    mode: str, sizes: tuple[int, int, int], message: str
) -> None:
    problem = ConvProblem(1, 1, (1, 5, 1), padding=((0, 0), (1, 1), (2, 2)), padding_mode=mode)
    with pytest.raises(ConvolutionError, match=message):
        problem.verify_input_sizes(sizes)
