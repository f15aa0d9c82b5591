"""cuDNN or a generated kernel, and by which tile: what was measured on this device, and is remembered.

`sh.conv2d(..., tune=True)` measures each pass of a convolution at its size, between two events on the device,
and keeps PyTorch's way unless a tile is faster by more than noise. Every later call of that problem and size
takes what was found, in this process and in later ones, as long as the device, the kernels, Triton and cuDNN
are the same. Calls that were never measured are PyTorch's.

| pass        | is known by                                             |
| forward     | device, problem, batch and sizes of the images          |
| grad_input  | the same                                                |
| grad_weight | the same                                                |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.planning.edition import device_edition
from shorthaul.conv.problem import ConvProblem, Triple
from shorthaul.conv.problem.geometry import as_triple
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.autotune import recall_choice
from shorthaul.jit.launching.product_precision import choose_product_precision
from shorthaul.settings import settings

if TYPE_CHECKING:  # Triton takes a second to import
    from shorthaul.conv.triton.launch import Tile

PYTORCH = "PyTorch"
PASSES = ("forward", "grad_input", "grad_weight")
MOST_KNOWN = 4096  # passes at sizes of their own: images of all sizes are not remembered for ever
NOT_MEASURED = "the Triton kernels were not measured at this size; tune=True measures, SHORTHAUL_KERNELS=generated uses them"
Sizes = tuple[int, int, int, int]  # batch, depth, height, width of the images

# What is known in this process, with where it is remembered: the disk is not asked at each call.
_known: dict[tuple[object, ...], Tile | None] = {}


def tuning_key(problem: ConvProblem, sizes: Sizes, which: str, device: torch.device) -> str:
    """What a choice is remembered by: everything that it depends on, apart from the processor."""
    known = torch.cuda.get_device_properties(device)
    return (
        f"{problem.describe()} {which} of {'x'.join(map(str, sizes))}, {_precision(problem)} "
        f"on {known.name} sm_{known.major}{known.minor} edition {device_edition()}"
    )


def find_tile(problem: ConvProblem, sizes: Sizes, which: str, device: torch.device) -> Tile | None:
    """The tile that was measured as the fastest; `None` where PyTorch was, or nothing was measured."""
    place = _place(problem, sizes, which, device)
    if place not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        choice = recall_choice(tuning_key(problem, sizes, which, device))
        if choice is None:
            note_fallback("convolution", "ATen", NOT_MEASURED)
        _known[place] = None
        if choice is not None and choice.name != PYTORCH:
            from shorthaul.conv.triton.launch import find_tile_named

            _known[place] = find_tile_named(choice.name)
    return _known[place]


def _place(
    problem: ConvProblem, sizes: Sizes, which: str, device: torch.device
) -> tuple[object, ...]:
    return (problem, sizes, which, device, _precision(problem), settings.cache_directory)


def _precision(problem: ConvProblem) -> str:
    """PyTorch's setting for products is asked at each call: what was measured under another one is not taken."""
    return choose_product_precision(problem.dtype) if problem.exact else "tf32"


def problem_of_pass(problem: ConvProblem, which: str) -> ConvProblem:
    """The problem as a pass sees it: gradients have neither bias nor activation."""
    return problem if which == "forward" else replace(problem, has_bias=False, activation=None)


def forget_measured() -> None:
    """Ask the disk again, as a new process would."""
    _known.clear()


class Measured:
    """The backend that runs each pass as it was measured."""

    @staticmethod
    def run_forward(
        problem: ConvProblem,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        *,
        out: Tensor | None = None,
        is_trained: bool = False,
    ) -> Tensor:
        """See `Backend`."""
        sizes = (len(input), *as_triple(input.shape[2:]))
        tile = find_tile(problem, sizes, "forward", input.device)
        if tile is None:
            return aten.run_forward(
                problem, input, weight, bias, residual, out=out, is_trained=is_trained
            )
        from shorthaul.conv.triton import launch

        return launch.run_forward(problem, input, weight, bias, residual, out=out, tile=tile)

    @staticmethod
    def run_grad_input(
        problem: ConvProblem,
        grad_output: Tensor,
        weight: Tensor,
        input_sizes: Triple,
        *,
        is_trained: bool = False,
    ) -> Tensor:
        """See `Backend`."""
        sizes = (len(grad_output), *input_sizes)
        tile = find_tile(problem, sizes, "grad_input", grad_output.device)
        if tile is None:
            return aten.run_grad_input(
                problem, grad_output, weight, input_sizes, is_trained=is_trained
            )
        from shorthaul.conv.triton import launch

        return launch.run_grad_input(problem, grad_output, weight, input_sizes, tile=tile)

    @staticmethod
    def run_grad_weight(problem: ConvProblem, grad_output: Tensor, input: Tensor) -> Tensor:
        """See `Backend`."""
        sizes = (len(input), *as_triple(input.shape[2:]))
        tile = find_tile(problem, sizes, "grad_weight", input.device)
        if tile is None:
            return aten.run_grad_weight(problem, grad_output, input)
        from shorthaul.conv.triton import launch

        return launch.run_grad_weight(problem, grad_output, input, tile=tile)
