"""What the convolution benchmarks share: inputs, PyTorch's ways and ours as arms, rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.measuring.answer import Answer
from benchmarks.measuring.measure import Arm, Measured
from shorthaul.conv import conv1d, conv2d, conv3d
from shorthaul.conv.problem import ConvProblem, Triple
from shorthaul.jit.peaks import Rates, measure_multiply_adds

EAGER = "PyTorch eager"
PREPACKED = "oneDNN prepacked"  # what torch.compile with freezing calls
OURS = "shorthaul"
INEXACT = "shorthaul, exact=False"


@dataclass(frozen=True)
class Case:
    """A problem with its size and random tensors, as few-dimensional as a user would write it."""

    name: str
    problem: ConvProblem
    batch: int
    sizes: Triple
    dimensions: int = 2

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Image and weight, scaled so that outputs are about one."""
        generator = torch.Generator().manual_seed(0)
        first = 3 - self.dimensions
        shape = (self.batch, self.problem.in_channels, *self.sizes[first:])
        image = torch.randn(shape, generator=generator).to(self.problem.dtype)
        if self.problem.layout == "channels_last" and self.dimensions > 1:
            last = torch.channels_last if self.dimensions == 2 else torch.channels_last_3d
            image = image.to(memory_format=last)
        weight_shape = (*self.problem.weight_shape[:2], *self.problem.kernel[first:])
        weight = torch.randn(weight_shape, generator=generator) / self.problem.window_values**0.5
        return image, weight.to(self.problem.dtype)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments that PyTorch and shorthaul name alike."""
        first = 3 - self.dimensions
        return {
            "stride": self.problem.stride[first:],
            "padding": tuple(low for low, _ in self.problem.padding[first:]),
            "dilation": self.problem.dilation[first:],
            "groups": self.problem.groups,
        }

    @property
    def flops(self) -> int:
        """Of one forward pass."""
        return self.problem.flops(self.batch, self.sizes)


def theirs(dimensions: int) -> Any:
    """PyTorch's function."""
    return (torch.conv1d, torch.conv2d, torch.conv3d)[dimensions - 1]


def ours(dimensions: int) -> Any:
    """Our function."""
    return (conv1d, conv2d, conv3d)[dimensions - 1]


def inference_arms(
    case: Case, *, with_prepacked: bool = False, with_inexact: bool = False
) -> list[Arm]:
    """Eager, prepacked and ours; fresh outputs in all of them."""
    image, weight = case.tensors()
    options = case.options

    def run(function: Any, **more: Any) -> Any:
        def call() -> Tensor:
            with torch.no_grad():
                result: Tensor = function(image, weight, None, **options, **more)
            return result

        return call

    arms = [Arm(EAGER, run(theirs(case.dimensions)))]
    if with_prepacked:
        arms.append(Arm(PREPACKED, _prepacked(case, image, weight)))
    arms.append(Arm(OURS, run(ours(case.dimensions))))
    if with_inexact:
        arms.append(Arm(INEXACT, run(ours(case.dimensions), exact=False)))
    return arms


def _prepacked(case: Case, image: Tensor, weight: Tensor) -> Any:
    options = case.options
    geometry = (options["padding"], options["stride"], options["dilation"], options["groups"])
    if case.problem.layout == "channels_last":
        weight = weight.to(memory_format=torch.channels_last)
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *geometry, list(image.shape))

    def call() -> Tensor:
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            image, packed, None, *geometry, "none", [], ""
        )
        return result

    return call


def training_arms(case: Case) -> list[Arm]:
    """Forward and both gradients."""
    image, weight = case.tensors()
    image.requires_grad_()
    weight.requires_grad_()
    output = theirs(case.dimensions)(image, weight, None, **case.options)
    gradient = torch.randn_like(output)

    def run(function: Any) -> Any:
        def call() -> tuple[Tensor, ...]:
            result = function(image, weight, None, **case.options)
            return torch.autograd.grad(result, (image, weight), gradient)

        return call

    return [
        Arm(EAGER, run(theirs(case.dimensions))),
        Arm(OURS, run(ours(case.dimensions))),
    ]


def with_layout(problem: ConvProblem, layout: str) -> ConvProblem:
    """The same problem in another layout."""
    return replace(problem, layout=layout)


def measure_peak(threads: Sequence[int]) -> dict[int, float]:
    """Multiply-add operations per second that this machine can do with so many threads."""
    rates: dict[int, float] = {}
    for count in threads:
        torch.set_num_threads(count)
        measured: Rates = measure_multiply_adds()
        rates[count] = measured.one_thread if count == 1 else measured.all_threads
    return rates


def add_rates(answer: Answer, measured: Sequence[Measured], flops: int, peak: float) -> None:
    """Set the arithmetic of the rows just measured in relation to their time and to the peak."""
    for row, each in zip(answer.rows[-len(measured) :], measured, strict=True):
        rate = flops / each.wall_seconds.median
        row["figures"]["flops_per_second"] = rate
        row["figures"]["peak_share"] = rate / peak


def thread_counts(answer: Answer) -> tuple[int, ...]:
    """One, and all."""
    most = torch.get_num_threads()
    return (1,) if answer.is_quick or most == 1 else (1, most)


def lowered(case: Case) -> Arm:
    """im2col as it is written with PyTorch: unfold, then a matrix product."""
    image, weight = case.tensors()
    options = case.options

    def call() -> Tensor:
        columns = torch.nn.functional.unfold(
            image, weight.shape[2:], options["dilation"], options["padding"], options["stride"]
        )
        product = weight.flatten(1) @ columns
        sizes = case.problem.output_sizes(case.sizes)
        return product.view(case.batch, -1, *sizes[1:])

    return Arm("im2col: unfold and mm", call)
