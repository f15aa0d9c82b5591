"""Tasks and phases against a plain enumeration of which tap touches what."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shorthaul.conv.problem import PADDING_MODES, ConvProblem, Triple
from shorthaul.conv.problem.geometry import (
    PADDING_CODES,
    KernelShape,
    as_triple,
    forward_task,
    grad_input_tasks,
)

Touch = tuple[Triple, Triple, Triple]  # position of the input, tap, position of the output


@st.composite
def small_problems(draw: st.DrawFn) -> tuple[ConvProblem, Triple]:
    def triple(low: int, high: int) -> Triple:
        return as_triple(draw(st.integers(low, high)) for _ in range(3))

    low, high = triple(0, 3), triple(0, 3)
    problem = ConvProblem(
        4,
        6,
        triple(1, 3),
        stride=triple(1, 4),
        dilation=triple(1, 4),
        padding=tuple(zip(low, high, strict=True)),  # type: ignore[arg-type]
        groups=2,
        layout=draw(st.sampled_from(("contiguous", "channels_last"))),
    )
    sizes = triple(1, 5)
    assume(min(problem.output_sizes(sizes)) > 0)
    return problem, sizes


def all_positions(sizes: Triple) -> list[Triple]:
    return list(product(*map(range, sizes)))  # type: ignore[arg-type]


def is_inside(position: Triple, sizes: Triple) -> bool:
    return all(0 <= each < size for each, size in zip(position, sizes, strict=True))


def all_touches(problem: ConvProblem, sizes: Triple) -> Counter[Touch]:
    """By the definition of a convolution; taps in the padding touch nothing."""
    touches: Counter[Touch] = Counter()
    for output in all_positions(problem.output_sizes(sizes)):
        for tap in all_positions(problem.kernel):
            at = as_triple(
                output[axis] * problem.stride[axis]
                + tap[axis] * problem.dilation[axis]
                - problem.padding[axis][0]
                for axis in range(3)
            )
            if is_inside(at, sizes):
                touches[at, tap, output] += 1
    return touches


@settings(max_examples=60, deadline=None)
@given(small_problems())
def test_phases_touch_what_the_convolution_touches(drawn: tuple[ConvProblem, Triple]) -> None:
    problem, sizes = drawn
    touches: Counter[Touch] = Counter()
    written: Counter[Triple] = Counter()
    for task, taps in grad_input_tasks(problem, 1, sizes):
        shape = task.shape
        assert task.in_sizes == problem.output_sizes(sizes)
        assert (shape.stride, task.full_sizes) == ((1, 1, 1), sizes)
        for place in all_positions(task.out_sizes):
            target = as_triple(
                task.first[axis] + place[axis] * task.step[axis] for axis in range(3)
            )
            written[target] += 1
            for turned in all_positions(shape.kernel):
                source = as_triple(
                    place[axis] + turned[axis] * shape.dilation[axis] - task.padding[axis]
                    for axis in range(3)
                )
                tap = as_triple(
                    taps.first[axis] + (shape.kernel[axis] - 1 - turned[axis]) * taps.step[axis]
                    for axis in range(3)
                )
                assert is_inside(tap, problem.kernel)
                if is_inside(source, task.in_sizes):
                    touches[target, tap, source] += 1
    assert touches == all_touches(problem, sizes)
    assert all(is_inside(target, sizes) for target in written)
    assert set(written.values()) <= {1}  # no position is written by two phases


@settings(max_examples=60, deadline=None)
@given(small_problems())
def test_a_forward_task_reads_the_windows_of_the_padded_image(
    drawn: tuple[ConvProblem, Triple],
) -> None:
    problem, sizes = drawn
    task = forward_task(problem, 2, sizes)
    assert (task.full_sizes, task.step, task.first) == (task.out_sizes, (1, 1, 1), (0, 0, 0))
    count = 1
    for axis in range(3):
        padded = torch.nn.functional.pad(torch.arange(sizes[axis]), problem.padding[axis], value=-1)
        reach = (problem.kernel[axis] - 1) * problem.dilation[axis] + 1
        windows = padded.unfold(0, reach, problem.stride[axis])[:, :: problem.dilation[axis]]
        reads = [
            [
                place * task.shape.stride[axis]
                + tap * task.shape.dilation[axis]
                - task.padding[axis]
                for tap in range(task.shape.kernel[axis])
            ]
            for place in range(task.out_sizes[axis])
        ]
        inside = [[at if 0 <= at < sizes[axis] else -1 for at in row] for row in reads]
        assert inside == windows.tolist()
        count *= windows.numel()
    # Two images, six output channels that see two input channels each, a multiply and an add.
    assert task.flops == 2 * 2 * 6 * 2 * count


@settings(max_examples=60, deadline=None)
@given(small_problems(), st.sampled_from((torch.float32, torch.bfloat16)))
def test_windows_are_read_in_place_where_they_lie_in_the_image(
    drawn: tuple[ConvProblem, Triple], dtype: torch.dtype
) -> None:
    problem, sizes = drawn
    problem = replace(problem, dtype=dtype)
    windows = math.prod(problem.output_sizes(sizes)) * math.prod(problem.kernel)
    is_whole = all_touches(problem, sizes).total() == windows
    chosen = forward_task(problem, 1, sizes).windows
    assert (chosen == "in_place") == (
        problem.layout == "channels_last"
        and dtype == torch.float32
        and is_whole
        and all(low == 0 for low, _ in problem.padding)
    )
    if chosen == "rows":
        assert problem.kernel[0] == 1


@given(small_problems())
def test_the_share_of_padding_counts_products_with_zeros(drawn: tuple[ConvProblem, Triple]) -> None:
    problem, sizes = drawn
    task = forward_task(replace(problem, padding_mode="zeros"), 1, sizes)
    inside = 1.0
    for axis, outputs in enumerate(task.out_sizes):
        taps = range(problem.kernel[axis])
        positions = [
            output * problem.stride[axis] + tap * problem.dilation[axis] - task.padding[axis]
            for output in range(outputs)
            for tap in taps
        ]
        size = task.in_sizes[axis]
        inside *= sum(0 <= each < size for each in positions) / len(positions)
    assert task.padding_share == pytest.approx(1 - inside)
    assert replace(task, padding_mode="circular").padding_share == 0


def test_phases_without_taps_are_left_out() -> None:
    # With a stride of three, one tap reaches one position of three.
    problem = ConvProblem(2, 2, (1, 1, 1), stride=(1, 1, 3))
    ((task, taps),) = grad_input_tasks(problem, 1, (1, 1, 7))
    assert (task.first, task.step, task.out_sizes) == ((0, 0, 0), (1, 1, 3), (1, 1, 3))
    assert (taps.first, task.shape.kernel) == ((0, 0, 0), (1, 1, 1))


def test_channels_are_swapped_for_the_gradient_of_the_input() -> None:
    problem = ConvProblem(4, 6, (1, 3, 3), groups=2, activation="relu", layout="channels_last")
    forward = forward_task(problem, 3, (1, 5, 5))
    ((backward, _),) = grad_input_tasks(problem, 3, (1, 5, 5))
    assert (forward.shape.in_channels, forward.shape.out_channels) == (2, 3)
    assert (backward.shape.in_channels, backward.shape.out_channels) == (3, 2)
    assert (forward.activation, backward.activation) == ("relu", None)
    assert forward.channels_last
    assert backward.channels_last


def test_the_dilation_of_a_single_value_is_forgotten() -> None:
    problem = ConvProblem(2, 2, (1, 1, 3), dilation=(5, 4, 3))
    assert forward_task(problem, 1, (6, 6, 9)).shape.dilation == (1, 1, 3)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (KernelShape(64, 40, 1, (1, 3, 3), (1, 1, 1), (1, 1, 1)), "64to40_1x3x3"),
        (KernelShape(3, 8, 1, (1, 7, 5), (1, 2, 3), (1, 1, 1)), "3to8_1x7x5_s1x2x3"),
        (KernelShape(1, 1, 32, (1, 3, 3), (1, 1, 1), (1, 2, 2)), "1to1_1x3x3_d1x2x2_g32"),
    ],
)
def test_names_of_shapes(shape: KernelShape, expected: str) -> None:
    assert shape.describe() == expected
    taps = shape.without_channels()
    assert (shape.has_channels, taps.has_channels) == (True, False)
    assert taps.describe() == "any_" + expected.partition("_")[2].partition("_g")[0]


def test_numbers_in_the_order_of_the_kernels() -> None:
    problem = ConvProblem(
        4, 6, (1, 2, 3), (1, 2, 1), (1, 1, 2), ((0, 0), (1, 0), (2, 3)), "circular", groups=2
    )
    task = forward_task(problem, 7, (1, 8, 9))
    assert task.shape.values() == (2, 3, 2, 1, 2, 3, 1, 2, 1, 1, 1, 2)
    assert task.size_values() == (7, 1, 8, 9, 1, 4, 10, 0, 1, 2, 3, 1, 4, 10, 1, 1, 1, 0, 0, 0)


def test_every_padding_mode_has_a_code_of_its_own() -> None:
    assert sorted(PADDING_CODES) == sorted(PADDING_MODES)
    assert sorted(PADDING_CODES.values()) == list(range(len(PADDING_MODES)))
