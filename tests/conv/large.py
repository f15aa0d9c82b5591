"""Drawn convolutions that are large enough for specialized kernels, checked against float64.

As a program, held to AVX2 (no kernel knows another machine in its process)::

    python -m tests.conv.large avx2 --seed 3 --cases 5
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

import shorthaul as sh
from shorthaul.conv import aten
from shorthaul.conv.execution.execute import run_forward
from shorthaul.conv.methods.base import SPECIALIZED_FLOPS, ConvSchedule
from shorthaul.conv.planning.choice import candidate_schedules, choose_schedule
from shorthaul.conv.problem import LAYOUTS, PADDING_MODES, ConvProblem, Triple, machine
from shorthaul.settings import settings
from tests.conv.problems import in_double
from tests.conv.tolerances import TOLERANCES, require_close

MOST_FLOPS = 4 * SPECIALIZED_FLOPS  # of one image, so that float64 keeps up
MOST_VALUES = 1 << 21
DTYPES = (torch.float32,) * 5 + (torch.float64, torch.float64, torch.bfloat16, torch.float16)
SIZES_OF_KERNELS = {
    1: (1, 2, 3, 5, 10, 31),
    2: (1, 2, 3, 3, 3, 4, 5, 7, 11),
    3: (1, 2, 3, 3),
}
WINOGRAD_TOLERANCE = 1e-4  # what `exact=False` allows: transforms round, too

# What must run, by the machine that kernels are written for.
EVERYWHERE = {"window", "planar", "sliding", "tall", "depthwise", "grouped", "winograd"}
METHODS = {"avx512": EVERYWHERE | {"sweep"}, "avx2": EVERYWHERE}

Tile = tuple[str, int, int, bool]  # method, rows, vectors, whether pairs are multiplied


@dataclass(frozen=True)
class LargeCase:
    """A problem, its sizes, and how it is asked for."""

    problem: ConvProblem
    batch: int
    sizes: Triple
    dimensions: int
    is_transposed: bool  # then `problem` is the convolution whose gradient is computed
    weight_layout: str
    laying: str  # of the image in memory: dense, or a part of something larger

    def method(self) -> str:
        """What the cost model chooses for the forward pass."""
        schedule = choose_schedule(self.problem, (self.batch, *self.sizes))
        return f"{schedule.method.rstrip('24')}{' pairs' if schedule.has_pairs else ''}"

    def features(self) -> frozenset[str]:
        """What this case adds to a selection."""
        problem = self.problem
        kind = "transposed" if self.is_transposed else self.method()
        return frozenset(
            (
                kind,
                f"{self.dimensions} dimensions {problem.layout}",
                f"{problem.dtype}",
                problem.padding_mode,
                "groups" if problem.groups > 1 else "no groups",
                f"stride {max(problem.stride)}",
                f"dilation {max(problem.dilation)}",
            )
        )


def draw_cases(seed: int) -> Iterator[LargeCase]:
    """Cases without an end, the same for the same seed."""
    generator = random.Random(seed)
    while True:
        case = _draw(generator)
        if case is not None:
            yield case


def select_cases(seed: int, cases: int, drawn: int = 1500) -> list[LargeCase]:
    """As many different cases of those drawn: first what adds methods and other features, then any.

    Where none of them has a method that there is here, more are drawn until one does.
    """
    stream = draw_cases(seed)
    pool = [(case, case.features()) for case in islice(stream, drawn)]
    wanted = METHODS.get(machine.this_machine().name, {"window"})
    methods = {case.method() for case, _ in pool if not case.is_transposed} | {"transposed"}
    for case in islice(stream, 10 * drawn):
        if wanted <= methods:
            break
        if not case.is_transposed and case.method() not in methods:
            pool.append((case, case.features()))
            methods.add(case.method())
    chosen: list[LargeCase] = []
    seen: set[str] = set()
    while len(chosen) < cases:
        best = max(
            pool, key=lambda each: 10 * len((each[1] - seen) & methods) + len(each[1] - seen)
        )
        pool.remove(best)
        chosen.append(best[0])
        seen |= best[1]
    return chosen


def select_tiles(seed: int, drawn: int = 1500) -> dict[Tile, tuple[LargeCase, ConvSchedule]]:
    """A case, and a schedule for it, for every register tile that any of the drawn cases would have measured."""
    found: dict[Tile, tuple[LargeCase, ConvSchedule]] = {}
    for case in islice(draw_cases(seed), drawn):
        if case.is_transposed:
            continue
        for schedule in candidate_schedules(case.problem, (case.batch, *case.sizes)):
            tile = (schedule.method, schedule.rows, schedule.vectors, schedule.has_pairs)
            found.setdefault(tile, (case, schedule))
    return found


def _draw(generator: random.Random) -> LargeCase | None:
    pick = generator.choice
    dimensions = pick((1, 2, 2, 2, 3, 3))
    leading = 3 - dimensions

    def triple(values: tuple[int, ...]) -> Triple:
        depth, height, width = (1,) * leading + tuple(pick(values) for _ in range(dimensions))
        return depth, height, width

    per_group, outputs, groups = _draw_channels(generator)
    kernel = triple(SIZES_OF_KERNELS[dimensions])
    if pick((True, False)):
        kernel = _repeat(kernel[2], leading)
    stride, dilation = triple((1, 1, 1, 2, 3)), triple((1, 1, 1, 2, 3))
    reach = [wide * (size - 1) + 1 for wide, size in zip(dilation, kernel, strict=True)]
    is_transposed = generator.random() < 0.2
    mode = "zeros" if is_transposed else pick(("zeros", "zeros", *PADDING_MODES))
    pads = [(0, 0)] * 3
    for axis in range(leading, 3):
        low = generator.randint(0, min(3, reach[axis] - 1))
        high = low if is_transposed or pick((True, False)) else generator.randint(0, 3)
        pads[axis] = (low, high)
    window = 2 * per_group * math.prod(kernel) * outputs * groups
    wanted = SPECIALIZED_FLOPS * generator.uniform(1.1, 2) * pick((1, min(math.prod(stride), 2)))
    side = math.ceil((wanted / window) ** (1 / dimensions))
    sizes = [1] * leading
    for axis in range(leading, 3):
        outs = max(1, side + generator.randint(0, 3))
        sizes.append(max(4, (outs - 1) * stride[axis] + reach[axis] - sum(pads[axis])))
    problem = ConvProblem(
        groups * per_group,
        groups * outputs,
        kernel,
        stride=stride,
        dilation=dilation,
        padding=(pads[0], pads[1], pads[2]),
        padding_mode=mode,
        groups=groups,
        dtype=pick(DTYPES),
        layout="contiguous" if dimensions == 1 else pick(LAYOUTS),
        has_bias=pick((True, False)),
        exact=is_transposed or generator.random() < 0.85,
    )
    depth, height, width = sizes
    case = LargeCase(
        problem,
        pick((1, 1, 2)),
        (depth, height, width),
        dimensions,
        is_transposed,
        "contiguous" if dimensions == 1 else pick(LAYOUTS),
        pick(("dense", "dense", "dense", "part")),
    )
    flops = problem.flops(1, case.sizes)
    values = max(problem.in_channels * math.prod(sizes), problem.out_channels * side**dimensions)
    return case if SPECIALIZED_FLOPS <= flops <= MOST_FLOPS and values <= MOST_VALUES else None


def _draw_channels(generator: random.Random) -> tuple[int, int, int]:
    """Of one group's input and output, and the groups."""
    pick = generator.choice
    kind = pick(("dense", "dense", "groups", "groups", "depthwise", "few outputs"))
    if kind == "dense":
        return pick((1, 3, 16, 17, 32, 48)), pick((8, 16, 20, 33, 64)), 1
    if kind == "few outputs":
        return pick((3, 16, 33, 64)), pick((1, 2, 3, 5)), 1
    if kind == "depthwise":
        return 1, pick((1, 1, 1, 2)), pick((16, 20, 32, 64))
    equal = pick((2, 4, 8, 16))
    return (
        (equal, equal, pick((2, 4, 8)))
        if pick((True, False))
        else (
            pick((3, 8, 16)),
            pick((2, 8, 16, 20)),
            pick((2, 3, 4)),
        )
    )


def _repeat(size: int, leading: int) -> Triple:
    depth, height, width = (1,) * leading + (size,) * (3 - leading)
    return depth, height, width


def check(case: LargeCase, seed: int = 0) -> set[str]:
    """Compare the output and all gradients with float64; the names of the kernels that ran."""
    problem, generator = case.problem, torch.Generator().manual_seed(seed)

    def normal(shape: tuple[int, ...], layout: str, laying: str = "dense") -> Tensor:
        if laying == "part":
            shape = (*shape[:-1], shape[-1] + 3)
        tensor = torch.randn(shape, generator=generator, dtype=problem.dtype)
        if layout == "channels_last" and len(shape) > 3:
            last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
            tensor = tensor.contiguous(memory_format=last)
        return tensor[..., 1:-2] if laying == "part" else tensor

    spatial = case.sizes[3 - case.dimensions :]
    outputs = problem.output_sizes(case.sizes)[3 - case.dimensions :]
    channels, sizes = (
        (problem.out_channels, outputs) if case.is_transposed else (problem.in_channels, spatial)
    )
    image = normal((case.batch, channels, *sizes), problem.layout, case.laying)
    weight_shape = problem.weight_shape[:2] + problem.kernel[3 - case.dimensions :]
    weight = normal(weight_shape, case.weight_layout)
    of_bias = problem.in_channels if case.is_transposed else problem.out_channels
    bias = normal((of_bias,), "contiguous") if problem.has_bias else None
    leaves = [each.requires_grad_() for each in (image, weight, bias) if each is not None]
    with sh.meter() as counted:
        output = _run(case, image, weight, bias)
        gradient = normal(tuple(output.shape), problem.layout)
        gradients = torch.autograd.grad(output, leaves, gradient)
        with torch.no_grad():  # with weights that are packed once
            again = _run(case, image, weight, bias)
    doubles = [each.detach().double().requires_grad_() for each in leaves]
    expected = _run_double(case, *doubles)
    wanted = torch.autograd.grad(expected, doubles, gradient.double())
    tolerance = _tolerance(problem)
    require_close(output, expected, tolerance)
    require_close(again, expected, tolerance)
    for got, each in zip(gradients, wanted, strict=True):
        require_close(got, each, tolerance)
    return set(counted.launches)


def check_schedule(case: LargeCase, schedule: ConvSchedule, seed: int = 0) -> None:
    """Compare the output of one schedule, by a kernel for just this shape, with float64."""
    problem, generator = case.problem, torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=problem.dtype)

    image = normal(case.batch, problem.in_channels, *case.sizes)
    image = image.contiguous(memory_format=aten.memory_format(problem))
    weight = normal(*problem.weight_shape)
    bias = normal(problem.out_channels) if problem.has_bias else None
    specialized = replace(schedule, is_specialized=True)
    output = run_forward(problem, image, weight, bias, schedule=specialized)
    doubles = [each.double() for each in (image, weight, bias) if each is not None]
    expected = aten.run_forward(in_double(replace(problem, exact=True)), *doubles)
    require_close(output, expected, _tolerance(problem))


def check_tiles(seed: int) -> set[Tile]:
    """Check every register tile of this machine; the tiles."""
    tiles = select_tiles(seed)
    for tile, (case, schedule) in tiles.items():
        try:
            check_schedule(case, schedule, seed)
        except Exception as error:
            raise AssertionError(f"{tile} on {case}: {error}") from error
    return set(tiles)


def _tolerance(problem: ConvProblem) -> float:
    tolerance = TOLERANCES[problem.dtype]
    return tolerance if problem.exact else max(tolerance, WINOGRAD_TOLERANCE)


def _pairs(case: LargeCase) -> tuple[tuple[int, int], ...]:
    return case.problem.padding[3 - case.dimensions :]


def _run(case: LargeCase, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    problem, first = case.problem, 3 - case.dimensions
    stride, dilation = problem.stride[first:], problem.dilation[first:]
    if case.is_transposed:
        function = getattr(sh, f"conv_transpose{case.dimensions}d")
        output: Tensor = function(
            image,
            weight,
            bias,
            stride,
            [low for low, _ in _pairs(case)],
            _missing(case),
            problem.groups,
            dilation,
        )
        return output
    result: Tensor = getattr(sh, f"conv{case.dimensions}d")(
        image,
        weight,
        bias,
        stride,
        _pairs(case),
        dilation,
        problem.groups,
        padding_mode=problem.padding_mode,
        exact=problem.exact,
    )
    return result


def _missing(case: LargeCase) -> list[int]:
    """Rows and columns that a transposed convolution does not make by itself."""
    problem, first = case.problem, 3 - case.dimensions
    return [
        (size + low + high - wide * (length - 1) - 1) % step
        for size, (low, high), wide, length, step in zip(
            case.sizes[first:],
            _pairs(case),
            problem.dilation[first:],
            problem.kernel[first:],
            problem.stride[first:],
            strict=True,
        )
    ]


def _run_double(
    case: LargeCase, image: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    problem, first = case.problem, 3 - case.dimensions
    if case.is_transposed:
        function = getattr(torch.nn.functional, f"conv_transpose{case.dimensions}d")
        output: Tensor = function(
            image,
            weight,
            bias,
            problem.stride[first:],
            [low for low, _ in _pairs(case)],
            _missing(case),
            problem.groups,
            problem.dilation[first:],
        )
        return output
    for _ in range(first):
        image, weight = image.unsqueeze(2), weight.unsqueeze(2)
    output = aten.run_forward(in_double(replace(problem, exact=True)), image, weight, bias)
    for _ in range(first):
        output = output.squeeze(2)
    return output


def hold_to_avx2() -> None:
    """Let this process write kernels for 16 registers of 256 bits. Before any is written."""
    machine.this_machine = lambda: machine.AVX2  # type: ignore[assignment]

    for name, module in list(sys.modules.items()):
        if name.startswith("shorthaul.conv") and hasattr(module, "this_machine"):
            module.this_machine = machine.this_machine


def main() -> None:
    """Check some cases and print the kernels that ran, or the tiles."""
    parser = argparse.ArgumentParser()
    parser.add_argument("machine", choices=("avx2", "here"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--tiles", action="store_true", help="every register tile instead of cases")
    options = parser.parse_args()
    if options.machine == "avx2":
        hold_to_avx2()
    torch.set_num_threads(1)
    settings.compiling = "wait"  # what runs until kernels are there is not what is checked
    if options.tiles:
        print(json.dumps(sorted(check_tiles(options.seed))))
        return
    launched: set[str] = set()
    for case in select_cases(options.seed, options.cases):
        try:
            launched |= check(case)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error
    print(json.dumps(sorted(launched)))


if __name__ == "__main__":
    main()
