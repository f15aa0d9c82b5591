"""Run the Triton kernels in Triton's interpreter against ATen; prints one JSON line per problem.

A program of its own, because Triton decides at import whether it interprets.
"""

import json
import random
import sys
from dataclasses import replace

import torch

from shorthaul.conv import aten
from shorthaul.conv.problem import ACTIVATIONS, LAYOUTS, PADDING_MODES, ConvProblem
from shorthaul.conv.triton import launch as triton_launch


def draw_problem(random_numbers: random.Random) -> tuple[ConvProblem, int, tuple[int, int, int]]:
    choose, between = random_numbers.choice, random_numbers.randint
    dimensions = between(1, 3)
    leading = 3 - dimensions
    sizes = (1,) * leading + tuple(between(4, 7) for _ in range(dimensions))
    groups = choose((1, 1, 2, 3))
    problem = ConvProblem(
        in_channels=groups * between(1, 5),
        out_channels=groups * choose((1, 3, 8, 20)),
        kernel=(1,) * leading + tuple(between(1, 3) for _ in range(dimensions)),
        stride=(1,) * leading + tuple(between(1, 3) for _ in range(dimensions)),
        dilation=(1,) * leading + tuple(between(1, 2) for _ in range(dimensions)),
        padding=((0, 0),) * leading
        + tuple((between(0, 2), between(0, 3)) for _ in range(dimensions)),
        padding_mode=choose(PADDING_MODES),
        groups=groups,
        dtype=choose((torch.float32, torch.float32, torch.float16)),
        layout=choose(LAYOUTS),
        has_bias=choose((True, False)),
        activation=choose((None, *ACTIVATIONS)),
    )
    if min(problem.output_sizes(sizes)) < 1:  # the window does not fit
        return draw_problem(random_numbers)
    return problem, between(1, 3), sizes


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert got.shape == expected.shape, (got.shape, expected.shape)
    largest = max(float(expected.abs().max()), 1e-6)
    return float((got.double() - expected).abs().max()) / largest


def check(problem: ConvProblem, batch: int, sizes: tuple[int, int, int]) -> dict[str, object]:
    layout = aten.memory_format(problem)
    image = torch.randn(batch, problem.in_channels, *sizes).to(problem.dtype)
    image = image.contiguous(memory_format=layout)
    weight = torch.randn(problem.weight_shape).to(problem.dtype)
    bias = torch.randn(problem.out_channels).to(problem.dtype) if problem.has_bias else None
    shape = (batch, problem.out_channels, *problem.output_sizes(sizes))
    residual = torch.randn(shape).to(problem.dtype) if batch > 1 else None
    out = torch.full(shape, torch.nan, dtype=problem.dtype).contiguous(memory_format=layout)
    double = replace(problem, dtype=torch.float64)
    wide = [None if each is None else each.double() for each in (image, weight, bias, residual)]
    triton_launch.run_forward(problem, image, weight, bias, residual, out=out)
    errors = {"forward": relative_error(out, aten.run_forward(double, *wide))}
    gradient = torch.randn(shape).to(problem.dtype)
    errors["grad_input"] = relative_error(
        triton_launch.run_grad_input(problem, gradient, weight, sizes),
        aten.run_grad_input(double, gradient.double(), wide[1], sizes),
    )
    errors["grad_weight"] = relative_error(
        triton_launch.run_grad_weight(problem, gradient, image),
        aten.run_grad_weight(double, gradient.double(), wide[0]),
    )
    return {"problem": problem.describe(), "dtype": str(problem.dtype), **errors}


def main(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    triton_launch.MOST_PART_PIXELS = 64  # several parts also for images of a few pixels
    random_numbers = random.Random(seed)
    for _ in range(count):
        print(json.dumps(check(*draw_problem(random_numbers))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
