"""The generated kernels against ATen in double precision, and against themselves bit for bit."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.conv import aten
from shorthaul.conv.execution.execute import run_forward, run_grad_input, run_grad_weight, supports
from shorthaul.conv.execution.packing import pack, packed_weights
from shorthaul.conv.execution.plan import (
    WORKSPACE_STEP,
    find_workspace,
    forget_plans,
    plan_forward,
    plan_grad_weight,
)
from shorthaul.conv.functional import conv2d
from shorthaul.conv.methods.base import SPECIALIZED_FLOPS, ConvSchedule
from shorthaul.conv.methods.gradients.weight import plan_gradient
from shorthaul.conv.methods.window_blocks import choose_windows, has_much_padding
from shorthaul.conv.methods.window_kernel import WindowKernel
from shorthaul.conv.planning.choice import candidate_schedules, choose_schedule, schedule_gradient
from shorthaul.conv.problem import ACTIVATIONS, LAYOUTS, ConvProblem
from shorthaul.conv.problem.geometry import KernelShape, forward_task
from shorthaul.conv.problem.machine import this_machine
from shorthaul.jit.runtime import kernel_threads
from tests.conv.problems import ACTIVATION_LAYOUTS, Case, cases, in_double
from tests.conv.tolerances import require_close

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
PLAIN = ConvProblem(5, 19, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), layout="channels_last")


def output_like(case: Case, seed: int) -> torch.Tensor:
    out_problem = replace(case.problem, in_channels=case.problem.out_channels)
    sizes = case.problem.output_sizes(case.sizes)
    return Case(out_problem, case.batch, sizes).tensors(seed)[0]


def require_forward(case: Case, **arguments: object) -> torch.Tensor:
    image, weight, bias = case.tensors()
    got = run_forward(case.problem, image, weight, bias, **arguments)  # type: ignore[arg-type]
    wide = [None if each is None else each.double() for each in (image, weight, bias)]
    require_close(
        got,
        aten.run_forward(in_double(case.problem), *wide),  # type: ignore[arg-type]
        parts=aten.run_forward(
            replace(in_double(case.problem), activation=None),
            *(None if each is None else each.abs() for each in wide),  # type: ignore[arg-type]
        ),
    )
    return got


def require_gradients(case: Case) -> None:
    problem, wide = case.problem, in_double(case.problem)
    image, weight, _ = case.tensors()
    gradient = output_like(case, seed=1)
    images, weights, gradients = (each.double() for each in (image, weight, gradient))
    require_close(
        run_grad_input(problem, gradient, weight, case.sizes),
        aten.run_grad_input(wide, gradients, weights, case.sizes),
        parts=aten.run_grad_input(wide, gradients.abs(), weights.abs(), case.sizes),
    )
    require_close(
        run_grad_weight(problem, gradient, image),
        aten.run_grad_weight(wide, gradients, images),
        parts=aten.run_grad_weight(wide, gradients.abs(), images.abs()),
    )


@settings(max_examples=60, deadline=None)
@given(cases(is_quick=True))
def test_forward_is_atens(case: Case) -> None:
    require_forward(case)


@settings(max_examples=60, deadline=None)
@given(cases(is_quick=True))
def test_gradients_are_atens(case: Case) -> None:
    require_gradients(case)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=500, deadline=None)
@given(cases(DTYPES))
def test_everything_is_atens_in_every_dtype_and_layout(case: Case) -> None:
    require_forward(case)
    require_gradients(case)


@pytest.mark.parametrize(("dtype", "large"), [(torch.bfloat16, 256.0), (torch.float16, 2048.0)])
def test_gradients_of_repeated_values_are_rounded_once(dtype: torch.dtype, large: float) -> None:
    # Every corner is repeated 49 times; next to a large number 16 bits have no room for single ones.
    padding = ((0, 0), (6, 6), (6, 6))
    problem = ConvProblem(1, 1, (1, 1, 1), padding=padding, padding_mode="replicate", dtype=dtype)
    gradient = torch.ones(1, 1, 1, 14, 14, dtype=dtype)
    gradient[..., 0, 0] = large
    found = run_grad_input(problem, gradient, torch.ones(1, 1, 1, 1, 1, dtype=dtype), (1, 2, 2))
    assert found.flatten().tolist() == [large + 48.0, 49.0, 49.0, 49.0]


@settings(max_examples=60, deadline=None)
@given(cases(is_quick=True))
def test_windows_give_the_same_bits_wherever_they_are_read(case: Case) -> None:
    task = forward_task(case.problem, case.batch, case.sizes)
    strips = ConvSchedule("window", 6, 2, is_specialized=False, strip_bytes=3000, windows="strips")
    layouts = ["rows"] if task.shape.kernel[0] == 1 else []
    layouts += ["in_place"] if task.windows == "in_place" else []
    if layouts:
        expected = require_forward(case, schedule=strips)
        for layout in layouts:
            got = require_forward(case, schedule=replace(strips, windows=layout))
            assert torch.equal(got, expected), layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_kernel_for_many_channels_shares_rows_and_gives_the_same_bits(layout: str) -> None:
    # Three images of five rows: blocks end within images, and some span two of them.
    problem = ConvProblem(64, 24, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), layout=layout)
    inside = replace(problem, padding=((0, 0), (0, 0), (0, 0)))
    reflected = replace(problem, padding_mode="reflect")
    for each, last in ((problem, "in_place"), (inside, "in_place"), (reflected, "rows")):
        case = Case(each, 3, (1, 5, 7))
        schedule = ConvSchedule("window", 6, 2, strip_bytes=9 * 6 * 256, depth_chunk=130)
        chosen = choose_windows(forward_task(each, 3, case.sizes), schedule)
        assert chosen == (last if layout == "channels_last" else "rows")
        expected = require_forward(case, schedule=replace(schedule, windows="strips"))
        assert torch.equal(require_forward(case, schedule=schedule), expected)


def paired(*channels: int, **arguments: Any) -> ConvProblem:
    problem: Any = {"dtype": torch.bfloat16, "layout": "channels_last", **arguments}
    return ConvProblem(*channels, **problem)


PADDED = ((0, 0), (1, 2), (2, 1))
# By what of a window is one run, and where it is read; odd runs have a last value without a partner.
PAIRED_CASES = {
    "rows in place, odd": Case(paired(3, 24, kernel=(1, 5, 3), stride=(1, 2, 2)), 3, (1, 9, 13)),
    "rows packed, odd": Case(
        paired(3, 40, kernel=(1, 3, 7), padding=((0, 0), (0, 0), (1, 0))), 3, (1, 9, 35)
    ),
    "rows packed from planes": Case(
        paired(35, 24, kernel=(1, 3, 3), layout="contiguous"), 3, (1, 6, 21)
    ),
    "taps without padding": Case(paired(6, 24, kernel=(1, 3, 3), padding=PADDED), 3, (1, 4, 5)),
    "taps of odd channels": Case(
        paired(5, 17, kernel=(1, 3, 3), padding=PADDED, layout="contiguous"), 3, (1, 4, 5)
    ),
    "taps of odd groups in place": Case(paired(10, 40, kernel=(1, 3, 3), groups=2), 3, (1, 6, 7)),
    "taps of dilated windows": Case(
        paired(5, 20, kernel=(1, 2, 3), dilation=(1, 2, 2)), 3, (1, 7, 9)
    ),
    "columns": Case(
        paired(5, 20, kernel=(2, 3, 3), dilation=(1, 1, 2), layout="contiguous"), 3, (3, 6, 9)
    ),
    "windows of one row": Case(paired(37, 20, kernel=(1, 1, 1), layout="contiguous"), 3, (1, 5, 7)),
    "windows of a volume": Case(
        paired(3, 20, kernel=(2, 3, 3), padding=((1, 1), (1, 1), (1, 1))), 3, (3, 5, 6)
    ),
    "reflected": Case(
        paired(3, 20, kernel=(1, 3, 3), padding=PADDED, padding_mode="reflect"), 3, (1, 6, 7)
    ),
}


multiplies_pairs = pytest.mark.skipif(
    not this_machine().multiplies_pairs,
    reason="this processor does not multiply pairs of bfloat16 values",
)


@multiplies_pairs
@pytest.mark.parametrize("name", PAIRED_CASES)
def test_products_of_pairs_are_atens(name: str) -> None:
    case = PAIRED_CASES[name]
    biased = replace(case, problem=replace(case.problem, has_bias=True))
    schedule = choose_schedule(biased.problem, (case.batch, *case.sizes))
    assert schedule.has_pairs
    assert not schedule.is_specialized
    got = require_forward(biased)
    require_gradients(biased)
    # In a large batch the same images get a kernel of their own.
    image, weight, bias = biased.tensors()
    specialized = candidate_schedules(biased.problem, (case.batch, *case.sizes))[0]
    assert specialized.is_specialized
    for each in range(case.batch):
        alone = run_forward(
            biased.problem, image[each : each + 1], weight, bias, schedule=specialized
        )
        assert torch.equal(alone[0], got[each]), "an image's bits depend on its batch"


@multiplies_pairs
def test_tiles_and_threads_give_pairs_the_same_bits() -> None:
    case = PAIRED_CASES["rows in place, odd"]
    problem = replace(case.problem, out_channels=72, activation="relu")
    image, weight, _ = Case(problem, 3, (1, 20, 23)).tensors()
    schedules = candidate_schedules(problem, (3, 1, 20, 23))
    assert len(schedules) > 2
    results = []
    for threads, schedule in itertools.product((1, 2), schedules):
        torch.set_num_threads(threads)
        results.append(run_forward(problem, image, weight, schedule=schedule))
    assert all(torch.equal(each, results[0]) for each in results)


@multiplies_pairs
def test_scaled_whole_numbers_are_widened_and_not_paired() -> None:
    # 190.5 and 187.5 have a difference of 3; rounded to 16 bits, they would be 190 and 188.
    problem = paired(2, 16, kernel=(1, 1, 1))
    image = torch.tensor([1.0, -1.0], dtype=torch.bfloat16).view(1, 2, 1, 1, 1)
    weight = torch.tensor([127, 125], dtype=torch.int8).repeat(16, 1).view(16, 2, 1, 1, 1)
    got = run_forward(problem, image, weight, weight_scale=torch.full((16,), 1.5))
    assert got.unique().tolist() == [3.0]


@multiplies_pairs
def test_a_run_without_a_partner_reads_nothing_of_its_neighbor() -> None:
    # Nine values of a row are four pairs and one: the value beside it belongs to the next pixel.
    case = PAIRED_CASES["rows in place, odd"]
    image, weight, _ = case.tensors()
    image[..., 8, 9] = float("inf")
    expected = aten.run_forward(in_double(case.problem), image.double(), weight.double())
    assert 0 < int(expected.isfinite().sum()) < expected.numel()
    require_close(run_forward(case.problem, image, weight), expected)


@st.composite
def padded_cases(draw: st.DrawFn) -> Case:
    """Images with more zeros around them than most have: up to whole windows of them."""
    numbers = st.integers
    height, width = draw(numbers(2, 4)), draw(numbers(1, 4))
    dilation = (1, draw(numbers(1, 3)), draw(numbers(1, 3)))
    pads = st.tuples(numbers(0, 9), numbers(0, 9))
    tall, wide = draw(pads), draw(pads)
    # A kernel that is too large for its padded image gets a larger image.
    sizes = (
        1,
        max(draw(numbers(1, 7)), (height - 1) * dilation[1] + 1 - sum(tall)),
        max(draw(numbers(1, 7)), (width - 1) * dilation[2] + 1 - sum(wide)),
    )
    problem = ConvProblem(
        5,
        draw(st.sampled_from((9, 33))),
        (1, height, width),
        (1, draw(numbers(1, 3)), draw(numbers(1, 3))),
        dilation,
        (draw(st.sampled_from(((0, 0), (1, 0)))), tall, wide),
        layout=draw(st.sampled_from(LAYOUTS)),
        has_bias=draw(st.booleans()),
    )
    return Case(problem, draw(numbers(1, 4)), sizes)


@settings(max_examples=120, deadline=None)
@given(
    padded_cases(),
    st.sampled_from((1500, 6000, 60_000)),  # blocks of a few rows, and of several images
    st.sampled_from((3, 12, 4608)),  # parts of runs, a few runs, whole windows
)
def test_skipped_padding_gives_the_bits_of_added_zeros(
    case: Case, strip_bytes: int, depth_chunk: int
) -> None:
    strips = ConvSchedule(
        "window", 6, 2, depth_chunk=depth_chunk, is_specialized=False, strip_bytes=strip_bytes,
        windows="strips",
    )  # fmt: skip
    expected = require_forward(case, schedule=strips)
    assert torch.equal(require_forward(case, schedule=replace(strips, windows="rows")), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_specialized_kernel_for_many_channels_skips_padding(layout: str) -> None:
    # Gradients pad by all of the kernel but one; two chunks of the window, blocks of two images.
    problem = ConvProblem(64, 72, (1, 4, 3), padding=((0, 0), (3, 3), (2, 2)), layout=layout)
    case = Case(problem, 3, (1, 5, 6))
    assert has_much_padding(forward_task(problem, 3, case.sizes))
    schedule = ConvSchedule("window", 6, 2, strip_bytes=10 * 11 * 256, depth_chunk=7 * 64)
    expected = require_forward(case, schedule=replace(schedule, windows="strips"))
    assert torch.equal(require_forward(case, schedule=schedule), expected)


AROUND_PADDING = {
    "one pixel": ConvProblem(64, 24, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1))),
    "strides": ConvProblem(40, 72, (1, 5, 4), (1, 3, 2), padding=((0, 0), (4, 2), (0, 3))),
    "dilation": ConvProblem(
        32, 17, (1, 3, 3), dilation=(1, 3, 2), padding=((0, 0), (3, 3), (2, 2))
    ),
    "groups": ConvProblem(72, 48, (1, 2, 3), groups=2, padding=((0, 0), (1, 0), (1, 1))),
    "more than the window": ConvProblem(33, 20, (1, 2, 2), padding=((0, 0), (3, 2), (2, 4))),
    "double": ConvProblem(36, 20, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), dtype=torch.float64),
}


@pytest.mark.parametrize("name", AROUND_PADDING)
def test_windows_in_padding_are_read_in_place_and_nothing_around_the_image(name: str) -> None:
    problem = replace(AROUND_PADDING[name], layout="channels_last")
    case = Case(problem, 3, (1, 9, 11))
    image, weight, bias = case.tensors()
    around = torch.full((image.numel() + 20_000,), torch.nan, dtype=image.dtype)
    lying = around[10_000 : 10_000 + image.numel()].as_strided(image.shape, image.stride(), 10_000)
    lying.copy_(image)
    schedule = ConvSchedule("window", 6, 2, strip_bytes=3 * 11 * 256, depth_chunk=4 * 36)
    task = forward_task(problem, 3, case.sizes)
    assert task.windows == "rows"
    assert choose_windows(task, schedule) == "in_place"
    strips = replace(schedule, windows="strips")
    results = [
        run_forward(problem, each, weight, bias, schedule=chosen)
        for each, chosen in ((lying, schedule), (image, strips))
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("padding", "stride", "sizes"),
    [
        (((0, 0), (3, 3), (2, 2)), (1, 1, 1), (1, 5, 6)),
        (((0, 0), (9, 8), (7, 9)), (1, 1, 2), (1, 3, 2)),  # windows that see nothing of the image
        (((0, 0), (2, 4), (3, 1)), (1, 5, 5), (1, 9, 12)),  # rows and columns that no window reads
    ],
)
@pytest.mark.parametrize("batch", [1, 4])
def test_packed_rows_without_padding_fit_their_workspace(
    layout: str, padding: Any, stride: Any, sizes: Any, batch: int
) -> None:
    problem = ConvProblem(5, 19, (1, 4, 3), stride, padding=padding, layout=layout)
    image, weight, _ = Case(problem, batch, sizes).tensors()
    for strip_bytes in (400, 2000, 100_000):
        schedule = ConvSchedule(
            "window", 6, 2, is_specialized=False, strip_bytes=strip_bytes, windows="rows"
        )
        plan = plan_forward(problem, (batch, *sizes), schedule, 1)
        packed = pack(plan.weights, plan.canonical, weight)
        workspace = torch.full((plan.workspace_bytes + 4096 + 64,), 171, dtype=torch.uint8)
        workspace = workspace[-workspace.data_ptr() % 64 :]
        output = torch.empty_strided(plan.out_shape, plan.out_strides)
        addresses = (each.data_ptr() for each in (image, packed, output, workspace))
        of_image, of_packed, of_output, of_workspace = addresses
        plan.run_at(of_image, of_packed, None, None, of_output, of_workspace)
        assert (workspace[plan.thread_bytes :] == 171).all()
        require_close(output, aten.run_forward(problem, image, weight))


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("width", [9, 40, 71])
def test_phases_of_a_strided_gradient_leave_their_neighbors_alone(stride: int, width: int) -> None:
    # Rows of a few pixels, of whole vectors of them, and of both; two vectors of channels, one not full.
    problem = ConvProblem(
        19, 8, (1, 3, 3), (1, stride, stride), padding=((0, 0), (1, 1), (1, 1)), layout="contiguous"
    )
    case = Case(problem, 2, (1, 9, width))
    _, weight, _ = case.tensors()
    gradient = output_like(case, seed=1)
    last = replace(problem, layout="channels_last")
    expected = run_grad_input(
        last, gradient.contiguous(memory_format=torch.channels_last_3d), weight, case.sizes
    )
    got = run_grad_input(problem, gradient, weight, case.sizes)
    assert got.is_contiguous()
    assert torch.equal(got, expected)
    require_close(got, aten.run_grad_input(problem, gradient, weight, case.sizes))


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("width", [7, 16, 19, 40])
def test_planes_of_few_channels_are_packed_as_pixels(channels: int, width: int) -> None:
    problem = ConvProblem(
        channels, 19, (1, 3, 3), padding=((0, 0), (1, 1), (1, 0)), layout="contiguous"
    )
    case = Case(problem, 2, (1, 6, width))
    strips = ConvSchedule("window", 6, 2, is_specialized=False, strip_bytes=1500, windows="strips")
    expected = require_forward(case, schedule=strips)
    assert torch.equal(require_forward(case, schedule=replace(strips, windows="rows")), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("threads", [1, 3])
def test_weights_over_padding_are_not_multiplied(layout: str, threads: int) -> None:
    # The image is so small that the outer taps meet nothing but zeros, which times NaN would be NaN.
    problem = ConvProblem(5, 9, (1, 5, 5), padding=((0, 0), (2, 2), (2, 2)), layout=layout)
    image, weight, _ = Case(problem, 4, (1, 2, 2)).tensors()
    torch.set_num_threads(threads)
    rows = ConvSchedule("window", 6, 2, is_specialized=False, strip_bytes=4000, windows="rows")
    expected = run_forward(problem, image, weight, schedule=rows)
    weight[..., 0, :] = weight[..., :, 4] = torch.nan
    assert torch.equal(run_forward(problem, image, weight, schedule=rows), expected)
    require_close(aten.run_forward(problem, image, weight), expected)


@pytest.mark.parametrize("width", [1, 5, 14, 15, 31])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stride": (1, 2, 2)},
        {"kernel": (1, 3, 2), "stride": (1, 1, 3)},  # skips columns
        {"dilation": (1, 1, 2), "padding": ((0, 0), (0, 1), (2, 2)), "padding_mode": "replicate"},
    ],
)
def test_high_tiles_of_windows_at_even_steps_give_the_same_bits(
    width: int, changes: dict[str, Any]
) -> None:
    fields = {"kernel": (1, 3, 3), "padding": ((0, 0), (1, 1), (1, 1)), **changes}
    problem = ConvProblem(16, 16, groups=2, layout="channels_last", **fields)
    case = Case(problem, 2, (1, 5, width))
    # Blocks of a few rows, the last narrower than others, some of two images.
    even = ConvSchedule("window", 14, 1, strip_bytes=4000, windows="rows")
    expected = require_forward(case, schedule=replace(even, rows=6, windows="strips"))
    assert torch.equal(require_forward(case, schedule=even), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 7, 17, 50, 97])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stride": (1, 2, 2), "padding": ((0, 0), (2, 1), (0, 3))},
        {"kernel": (2, 2, 3), "stride": (1, 1, 4), "out_channels": 33},
    ],
)
def test_windows_of_few_channels_give_the_same_bits_wherever_they_are_read(
    layout: str, width: int, changes: dict[str, Any]
) -> None:
    # Runs of three values, tiles that end with their output row, groups of pixels that end in its middle.
    fields = {"out_channels": 64, "kernel": (1, 3, 3), **changes}
    case = Case(ConvProblem(3, layout=layout, **fields), 2, (2, 7, max(width, 3)))
    task = forward_task(case.problem, case.batch, case.sizes)
    strips = ConvSchedule("window", 6, 2, strip_bytes=4000, windows="strips")
    expected = require_forward(case, schedule=strips)
    others = ["rows"] if fields["kernel"][0] == 1 else []
    others += ["in_place"] if task.windows == "in_place" else []
    for tile, windows in itertools.product(this_machine().tiles()[:2], others):
        schedule = replace(strips, rows=tile[0], vectors=tile[1], windows=windows)
        assert torch.equal(require_forward(case, schedule=schedule), expected)


METHODS = (
    (ConvProblem(6, 9, (1, 3, 3), groups=3, padding=((0, 0), (1, 1), (1, 1))), "planar", "planar"),
    (ConvProblem(20, 20, (1, 3, 5), groups=20, stride=(1, 2, 2)), "planar", "depthwise"),
    (
        ConvProblem(5, 1, (2, 3, 3), dilation=(1, 2, 3), padding=((1, 0), (4, 0), (3, 2))),
        "planar",
        "planar",
    ),
    (
        ConvProblem(19, 19, (1, 3, 3), groups=19, padding=((0, 0), (1, 1), (1, 1))),
        "sliding",
        "sliding",
    ),
    (
        ConvProblem(19, 19, (1, 9, 5), groups=19, padding=((0, 0), (4, 4), (2, 2))),
        "tall",
        "tall",
    ),
    (
        ConvProblem(32, 32, (3, 2, 3), groups=32, stride=(1, 1, 2), dilation=(1, 3, 1)),
        "planar",
        "depthwise",
    ),
    (ConvProblem(24, 40, (1, 3, 3), padding=((0, 0), (2, 0), (1, 1))), "window", "window"),
)


@pytest.mark.parametrize("mode", ["zeros", "symmetric"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("problem", "contiguous", "channels_last"), METHODS)
def test_every_method_gives_the_same_bits_as_the_window_kernel(
    problem: ConvProblem, contiguous: str, channels_last: str, layout: str, mode: str
) -> None:
    problem = replace(problem, layout=layout, padding_mode=mode, has_bias=True)
    case = Case(problem, 2, (4, 17, 23))
    chosen = choose_schedule(problem, (2, 4, 17, 23))
    assert chosen.method == (contiguous if layout == "contiguous" else channels_last)
    window = replace(chosen, method="window", rows=6, vectors=2, strip_bytes=5000)
    # Padding of zeros may be skipped instead of added, which only the sign of a zero could show.
    assert torch.equal(require_forward(case), require_forward(case, schedule=window))


@pytest.mark.parametrize("sizes", [(1, 5, 3), (1, 3, 8), (1, 40, 300), (3, 1, 97)])
def test_planar_blocks_of_every_form(sizes: tuple[int, int, int]) -> None:
    problem = ConvProblem(3, 2, (1, 1, 3), stride=(1, 1, 2), padding=((0, 0), (0, 0), (1, 1)))
    schedule = choose_schedule(problem, (2, *sizes))
    assert schedule.method == "planar" or sizes[2] < 8
    planar = replace(schedule, method="planar", rows=2, vectors=6)
    results = [
        require_forward(Case(problem, 2, sizes), schedule=replace(planar, strip_bytes=limit))
        for limit in (1 << 18, 3000)
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [3, 8, 19, 53])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [((1, 3, 3), (1, 1, 1), (1, 1, 1)), ((2, 1, 9), (1, 2, 2), (1, 1, 2))],
)
def test_depthwise_gradients_are_atens_on_any_number_of_threads(
    kernel, stride, dilation, channels: int, layout: str
) -> None:
    problem = ConvProblem(
        channels, channels, kernel, stride, dilation, ((1, 0), (1, 1), (2, 3)),
        groups=channels, layout=layout,
    )  # fmt: skip
    case = Case(problem, 2, (3, 7, 20))
    image, weight, _ = case.tensors()
    gradient = output_like(case, seed=1)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(run_grad_weight(problem, gradient, image))
        got = run_grad_input(problem, gradient, weight, case.sizes)
    assert all(torch.equal(each, results[0]) for each in results)
    wide = in_double(problem)
    require_close(results[0], aten.run_grad_weight(wide, gradient.double(), image.double()))
    require_close(got, aten.run_grad_input(wide, gradient.double(), weight.double(), case.sizes))


SINGLE_VALUES = ConvProblem(20, 32, (1, 1, 1), layout="channels_last")
SMALL_WEIGHTS = {
    "read in place": SINGLE_VALUES,
    "outputs that fill no vector": replace(SINGLE_VALUES, out_channels=23),
    "strides and groups": replace(SINGLE_VALUES, out_channels=64, groups=2, stride=(1, 2, 3)),
    "padding behind the image": replace(SINGLE_VALUES, padding=((0, 0), (0, 1), (0, 2))),
    "padding before the image": replace(SINGLE_VALUES, padding=((0, 0), (2, 0), (1, 0))),
    "values 256 bytes apart": replace(SINGLE_VALUES, in_channels=64),
    "windows": replace(PLAIN, out_channels=32),
    "contiguous": replace(SINGLE_VALUES, layout="contiguous"),
    "double": replace(SINGLE_VALUES, dtype=torch.float64),
    "half": replace(SINGLE_VALUES, dtype=torch.float16),
    "two stretches": replace(PLAIN, in_channels=64, out_channels=64),
    "two stretches, contiguous": replace(
        PLAIN, in_channels=64, out_channels=64, layout="contiguous"
    ),
}


@pytest.mark.parametrize("name", SMALL_WEIGHTS)
def test_small_weights_are_summed_in_stretches_on_any_number_of_threads(name: str) -> None:
    problem = SMALL_WEIGHTS[name]
    case = Case(problem, 3, (1, 131, 167))
    task = forward_task(problem, case.batch, case.sizes)
    assert plan_gradient(task, schedule_gradient(task), 2).stretches > 1
    image, _, _ = case.tensors()
    gradient = output_like(case, seed=1)
    results = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        results.append(run_grad_weight(problem, gradient, image))
    assert all(torch.equal(each, results[0]) for each in results)
    expected = aten.run_grad_weight(in_double(problem), gradient.double(), image.double())
    require_close(results[0], expected)


SHARED_WEIGHTS = {
    "panels": ConvProblem(20, 256, (1, 3, 3), layout="channels_last"),
    "channels": ConvProblem(100, 80, (1, 3, 3)),
    "channels of groups": ConvProblem(150, 160, (1, 3, 3), groups=2, layout="channels_last"),
}


@pytest.mark.parametrize("weight_layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", SHARED_WEIGHTS)
def test_threads_that_share_weights_give_the_same_bits(
    name: str, weight_layout: torch.memory_format
) -> None:
    problem = SHARED_WEIGHTS[name]
    case = Case(problem, 2, (1, 11, 13))
    image, weight, _ = case.tensors()
    image, weight = image.squeeze(2), weight.squeeze(2).contiguous(memory_format=weight_layout)
    weight.requires_grad_()
    results = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        for _ in range(
            2
        ):  # by operators, then as a known call, whose gradient lies as the weight does
            output = conv2d(image, weight, None, groups=problem.groups)
            (found,) = torch.autograd.grad(output.square().sum(), weight)
            results.append(found)
    assert all(torch.equal(each, results[0]) for each in results)
    wide = weight.detach().double().requires_grad_()
    output = torch.conv2d(image.double(), wide, None, groups=problem.groups)
    (expected,) = torch.autograd.grad(output.square().sum(), wide)
    require_close(results[0], expected)


def test_workspaces_grow_by_steps() -> None:
    def ask() -> list[torch.Tensor]:
        sizes = (1000, WORKSPACE_STEP - 1, WORKSPACE_STEP + 65, 1000, 2 * WORKSPACE_STEP)
        return [find_workspace(each) for each in sizes]

    with ThreadPoolExecutor(1) as pool:  # a thread that has none yet
        found = pool.submit(ask).result()
    assert found[0] is found[1]
    assert found[1] is not found[2]
    assert found[2] is found[3] is found[4]
    assert all(each.data_ptr() % 64 == 0 for each in found)


SPECIALIZED = (
    ConvProblem(24, 40, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), layout="channels_last"),
    ConvProblem(3, 24, (1, 7, 5), stride=(1, 2, 3), layout="contiguous"),
    ConvProblem(24, 32, (1, 1, 1), layout="channels_last"),
    ConvProblem(16, 12, (1, 2, 3), groups=2, dilation=(1, 1, 2), layout="contiguous"),
)


@pytest.mark.parametrize("problem", SPECIALIZED, ids=ConvProblem.describe)
def test_specialized_and_general_kernels_give_the_same_bits(problem: ConvProblem) -> None:
    case = Case(problem, 2, (1, 19, 23))
    schedule = choose_schedule(problem, (2, 1, 19, 23))
    general = require_forward(case, schedule=replace(schedule, is_specialized=False))
    special = require_forward(case, schedule=replace(schedule, is_specialized=True))
    assert torch.equal(general, special)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 2])
def test_layers_of_every_width_share_kernels_that_give_the_bits_of_their_own(
    layout: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    padding, threads = ((0, 0), (1, 1), (1, 1)), kernel_threads()
    cases = [
        Case(
            ConvProblem(
                channels * groups, 24 * groups, (1, 3, 3), padding=padding, groups=groups,
                layout=layout,
            ),
            2,
            (1, 40, 33),
        )
        for channels in (40, 64)
    ]  # fmt: skip

    def run(case: Case) -> tuple[torch.Tensor, ...]:
        image, weight, bias = case.tensors()
        gradient = output_like(case, seed=1)
        return (
            run_forward(case.problem, image, weight, bias),
            run_grad_input(case.problem, gradient, weight, case.sizes),
            run_grad_weight(case.problem, gradient, image),
        )

    def kernels() -> set[object]:
        sizes = (2, 1, 40, 33)
        forward = (plan_forward(each.problem, sizes, None, threads) for each in cases)
        weights = (plan_grad_weight(each.problem, sizes, threads) for each in cases)
        return {each.kernel for each in (*forward, *weights)}

    shared, few = [run(each) for each in cases], kernels()
    forget_plans()
    with monkeypatch.context() as patched:
        patched.setattr(WindowKernel, "for_every_width", lambda kernel: kernel)
        patched.setattr(KernelShape, "without_channels", lambda shape: shape)
        own, many = [run(each) for each in cases], kernels()
    forget_plans()
    assert (len(few), len(many)) == (2, 4)
    for case, together, alone in zip(cases, shared, own, strict=True):
        assert all(map(torch.equal, together, alone))
        require_forward(case)
        require_gradients(case)


def test_every_candidate_and_cut_gives_the_same_bits() -> None:
    case = Case(PLAIN, 3, (1, 40, 33))
    candidates = candidate_schedules(PLAIN, (3, 1, 40, 33))
    assert len({each.describe() for each in candidates}) == len(candidates) > 2
    general = [replace(each, is_specialized=False) for each in candidates]
    results = [
        require_forward(case, schedule=replace(each, **change))
        for each in general
        for change in ({}, {"strip_bytes": 1000}, {"strip_bytes": None}, {"depth_chunk": 7})
    ]
    assert all(torch.equal(each, results[0]) for each in results)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_bits_do_not_depend_on_threads_or_batch(layout: str) -> None:
    problem = replace(PLAIN, in_channels=24, out_channels=40, layout=layout)
    case = Case(problem, 4, (1, 21, 17))
    image, weight, _ = case.tensors()
    gradient = output_like(case, seed=1)

    def everything() -> list[torch.Tensor]:
        return [
            run_forward(problem, image, weight),
            run_grad_input(problem, gradient, weight, case.sizes),
            run_grad_weight(problem, gradient, image),
        ]

    alone = everything()
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(everything(), alone, strict=True))
    for index in range(4):
        single = run_forward(problem, image[index : index + 1], weight)
        assert torch.equal(single[0], alone[0][index])


@pytest.mark.parametrize(
    ("activation", "layout"),
    [
        pytest.param(
            *each,
            marks=() if each in ACTIVATION_LAYOUTS else (pytest.mark.slow,),
            id="-".join(each),
        )
        for each in itertools.product(ACTIVATIONS, LAYOUTS)
    ],
)
def test_bias_residual_and_activation(activation: str, layout: str) -> None:
    problem = replace(PLAIN, activation=activation, has_bias=True, layout=layout)
    case = Case(problem, 2, (1, 6, 13))
    image, weight, bias = case.tensors()
    residual = output_like(case, seed=2)
    got = run_forward(problem, image, weight, bias, residual)
    wide = [each.double() for each in (image, weight, bias, residual) if each is not None]
    require_close(got, aten.run_forward(in_double(problem), *wide))


def test_every_output_is_written() -> None:
    case = Case(PLAIN, 2, (1, 9, 11))
    image, weight, _ = case.tensors()
    out = output_like(case, seed=1).fill_(torch.nan)
    assert run_forward(PLAIN, image, weight, out=out) is out
    assert not out.isnan().any()


def test_nan_and_infinity_reach_the_windows_that_touch_them() -> None:
    case = Case(PLAIN, 1, (1, 8, 9))
    image, weight, _ = case.tensors()
    image[0, 2, 0, 3, 4], image[0, 1, 0, 7, 8] = torch.nan, torch.inf
    got = run_forward(PLAIN, image, weight)
    expected = aten.run_forward(in_double(PLAIN), image.double(), weight.double())
    require_close(got, expected)
    assert got.isnan().any()


def test_packed_weights_follow_the_version_and_the_life_of_the_tensor() -> None:
    image, weight, _ = Case(PLAIN, 1, (1, 5, 5)).tensors()
    before = len(packed_weights)
    first = run_forward(PLAIN, image, weight)
    assert len(packed_weights) == before + 1
    weight.mul_(2)
    assert torch.equal(run_forward(PLAIN, image, weight), 2 * first)
    del weight
    assert len(packed_weights) == before


def test_weights_in_any_strides() -> None:
    image, weight, _ = Case(PLAIN, 1, (1, 5, 5)).tensors()
    expected = run_forward(PLAIN, image, weight)
    flat = weight.squeeze(2).contiguous(memory_format=torch.channels_last)
    assert torch.equal(run_forward(PLAIN, image, flat), expected)


def test_what_is_not_supported_says_why() -> None:
    assert supports(PLAIN) is None
    assert supports(replace(PLAIN, dtype=torch.int32)) == "torch.int32 has no generated kernel"


def _deep(channels: tuple[int, int], kernel: tuple[int, int, int], **options: Any) -> Case:
    """Images of nine planes, and enough of them that kernels are compiled for the shape."""
    problem = ConvProblem(*channels, kernel, **options)
    one = problem.flops(1, (9, 9, 9))
    return Case(problem, -(-SPECIALIZED_FLOPS // one), (9, 9, 9))


AROUND = ((1, 1), (1, 1), (1, 1))
VECTOR = this_machine().lanes(4)
DEEP = {
    "vector_groups": _deep((32, 2 * VECTOR), (3, 3, 3), padding=AROUND, groups=2),
    "deep_columns": _deep((32, 2 * VECTOR), (2, 1, 1), groups=2),
    "dilated": _deep((32, 2 * VECTOR), (3, 3, 2), dilation=(2, 1, 3), groups=2),
    "strided": _deep((32, 2 * VECTOR), (3, 3, 3), padding=AROUND, stride=(2, 1, 2), groups=2),
    "repeated": _deep(
        (2 * VECTOR, 32), (3, 3, 3), padding=AROUND, padding_mode="circular", groups=2
    ),
    "one_group": _deep((24, 2 * VECTOR), (3, 2, 3), padding=AROUND),
    "half_vectors": _deep((32, 2 * VECTOR), (2, 3, 3), padding=AROUND, groups=4),
    "small_groups": _deep((32, 32), (3, 3, 3), padding=AROUND, groups=8),
    "depthwise": _deep((64, 64), (3, 3, 3), padding=AROUND, groups=64),
    "flat_windows": _deep((32, 2 * VECTOR), (1, 3, 3), padding=AROUND, stride=(2, 1, 1), groups=2),
    "flat_depthwise": _deep((64, 64), (1, 3, 3), padding=AROUND, stride=(2, 1, 1), groups=64),
    "flat_tall": _deep((64, 64), (1, 9, 3), padding=((1, 1), (4, 4), (1, 1)), groups=64),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["vector_groups", "dilated"])
def test_large_deep_convolutions_are_atens(name: str, layout: str) -> None:
    case = replace(DEEP[name], problem=replace(DEEP[name].problem, layout=layout))
    require_forward(case)
    require_gradients(case)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DEEP)
def test_every_schedule_of_large_deep_convolutions_is_atens(
    name: str, layout: str, dtype: torch.dtype
) -> None:
    case = replace(DEEP[name], problem=replace(DEEP[name].problem, layout=layout, dtype=dtype))
    require_gradients(case)
    for schedule in candidate_schedules(case.problem, (case.batch, *case.sizes)):
        require_forward(case, schedule=schedule)
