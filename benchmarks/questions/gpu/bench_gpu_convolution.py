"""How fast are the papers' twelve layers on a GPU, beside cuDNN as PyTorch calls it at its best?

The baseline has channels last and lets cuDNN try its algorithms (`torch.backends.cudnn.benchmark`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.nn import functional as F  # noqa: N812

from benchmarks.arms.conv_arms import Case
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.device_arm import Run, Way, compare_ways, find_device
from benchmarks.measuring.measure import same_within
from shorthaul.conv import TWELVE_LAYERS, Layer, conv2d
from shorthaul.conv.problem import ConvProblem
from shorthaul.settings import settings

LAST = "cuDNN, channels last, benchmark"
IMAGES = 32
SMALL = Layer("small", ConvProblem(8, 8, (1, 3, 3)), (1, 8, 8))  # to rehearse with


def measure(answer: Answer) -> None:
    """Forward passes, and steps with both gradients, in float32 and float16."""
    device = find_device()
    layers = [SMALL] if answer.is_quick else TWELVE_LAYERS
    for layer in layers:
        for dtype in (torch.float32, torch.float16):
            problem = replace(layer.problem, dtype=dtype, layout="channels_last")
            case = Case(layer.name, problem, 1 if answer.is_quick else IMAGES, layer.sizes)
            for is_training in (False, True):
                _compare(answer, case, device, is_training=is_training)


def _compare(answer: Answer, case: Case, device: torch.device, *, is_training: bool) -> None:
    image, weight = (each.to(device) for each in case.tensors())
    dtype = str(case.problem.dtype).removeprefix("torch.")
    last, first = image.to(memory_format=torch.channels_last), image.contiguous()

    def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with _cudnn_benchmark():
            return F.conv2d(x, w, **case.options)

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with settings.override(kernels="generated"):
            return conv2d(x, w, **case.options)

    def way(name: str, convolve: Callable[..., torch.Tensor], x: torch.Tensor) -> Way:
        return Way(name, lambda: _run(convolve, x, weight, is_training=is_training))

    is_half = case.problem.dtype is torch.float16
    compare_ways(
        answer,
        f"{case.name}, {case.batch} images, {dtype}{', training' if is_training else ''}",
        [
            way(LAST, theirs, last),
            way("cuDNN, contiguous, benchmark", theirs, first),
            way("shorthaul, channels last", ours, last),
            way("shorthaul, contiguous", ours, first),
        ],
        baseline=LAST,
        # Of values of about one: sums of some thousand products in another order.
        same=same_within(2e-2, 2e-2) if is_half else same_within(1e-3, 1e-3),
        device=device,
        has_peaks=True,
    )


def _run(
    convolve: Callable[..., torch.Tensor],
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    is_training: bool,
) -> Run:
    if not is_training:
        return lambda: convolve(x, weight)
    given = x.detach().requires_grad_(), weight.detach().clone().requires_grad_()

    def run() -> torch.Tensor:
        for each in given:
            each.grad = None
        out = convolve(*given)
        out.sum().backward()
        return out.detach()

    return run


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


if __name__ == "__main__":
    answer_question(measure)
