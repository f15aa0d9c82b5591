"""Each pass of a convolution measured on a device: PyTorch's way, and each tile of the generated kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import as_triple
from shorthaul.conv.triton import launch
from shorthaul.conv.triton.measured import (
    PASSES,
    PYTORCH,
    Sizes,
    forget_measured,
    problem_of_pass,
    tuning_key,
)
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.jit.launching.device_guard import computing_on, is_capturing

Run = Callable[[launch.Tile | None], Tensor]


def tune_on_device(
    problem: ConvProblem, images: Tensor, passes: Sequence[str] = PASSES
) -> Mapping[str, Choice]:
    """Measure what computes each pass fastest, unless it is remembered; the images' values are not used.

    Nothing is measured while a CUDA graph is captured, or for dtypes without a kernel.
    """
    device = images.device
    if launch.supports(problem) is not None or is_capturing(device):
        return {}
    sizes = (len(images), *as_triple(images.shape[2:]))
    found: dict[str, Choice] = {}
    with computing_on(device), torch.no_grad():
        for each in passes:
            own = problem_of_pass(problem, each)
            run = functools.cache(functools.partial(_make_run, own, images, each))
            tiles = list_candidates(own, sizes, each)
            found[each] = autotune(
                tuning_key(own, sizes, each, device),
                [
                    Candidate(PYTORCH, functools.partial(_run_by, run, None)),
                    *(
                        Candidate(tile.name, functools.partial(_run_by, run, tile))
                        for tile in tiles
                    ),
                ],
                preferred=PYTORCH,
                clock=functools.partial(time_on_device, device),
            )
    forget_measured()
    return found


def _run_by(make: Callable[[], Run], tile: launch.Tile | None) -> Tensor:
    """Tensors are made by the first candidate that runs: a remembered choice needs none."""
    return make()(tile)


def time_on_device(device: torch.device, run: Callable[[], object]) -> float:
    """The seconds that the device takes for what `run` starts."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def list_candidates(problem: ConvProblem, sizes: Sizes, which: str) -> list[launch.Tile]:
    """The tiles that a pass may be computed by."""
    rows, columns = _count_products(problem, sizes, which)
    return launch.list_tiles(rows, columns, has_tensor_cores=launch.uses_tensor_cores(problem))


def _count_products(problem: ConvProblem, sizes: Sizes, which: str) -> tuple[int, int]:
    """Rows and columns of the product that a pass is."""
    batch, *spatial = sizes
    if which == "grad_weight":
        return problem.window_values, problem.out_channels_per_group
    own = as_triple(spatial) if which == "grad_input" else problem.output_sizes(as_triple(spatial))
    columns = (
        problem.in_channels_per_group if which == "grad_input" else problem.out_channels_per_group
    )
    return batch * own[0] * own[1] * own[2], columns


def _make_run(problem: ConvProblem, images: Tensor, which: str) -> Run:
    """One pass on tensors of its own, by a tile or, without one, by PyTorch."""
    own = torch.Generator().manual_seed(0)  # the user's numbers go on

    def draw(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=own, dtype=torch.float32, device="cpu")
        made = made.to(problem.dtype).to(images.device)
        is_image = len(shape) == 5 and shape != problem.weight_shape
        return made.contiguous(memory_format=aten.memory_format(problem)) if is_image else made

    sizes = as_triple(images.shape[2:])
    arrived = (len(images), problem.out_channels, *problem.output_sizes(sizes))
    weight: Tensor | None = None if which == "grad_weight" else draw(*problem.weight_shape)
    arguments: tuple[Any, ...]
    if which == "forward":
        bias = draw(problem.out_channels) if problem.has_bias else None
        arguments = draw(*images.shape), weight, bias
    elif which == "grad_input":
        arguments = draw(*arrived), weight, sizes
    else:
        arguments = draw(*arrived), draw(*images.shape)

    def run(tile: launch.Tile | None) -> Tensor:
        made: Tensor
        if tile is None:
            made = getattr(aten, f"run_{which}")(problem, *arguments)
        else:
            made = getattr(launch, f"run_{which}")(problem, *arguments, tile=tile)
        return made

    return run
