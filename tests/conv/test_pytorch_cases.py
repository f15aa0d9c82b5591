"""What PyTorch's own tests of convolutions try, with ours in its place: a table of cases, each as PyTorch has it.

Its samples and error inputs of operators and modules are run where they are installed (`test_functional`,
`test_transposed`, `test_layer`); its `test_convolution` is not installed, so what it tries is listed here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import shorthaul as sh
from tests.conv.tolerances import require_close

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
SIDES = {1: (11,), 2: (9, 8), 3: (5, 6, 5)}


@dataclass(frozen=True)
class Case:
    """A call, by shapes: of the image, the weight and the bias."""

    name: str
    image: tuple[int, ...]
    weight: tuple[int, ...]
    bias: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    function: str = ""

    def __str__(self) -> str:
        return self.name

    def find(self, kind: Any) -> Any:
        """The function of ours or of PyTorch's."""
        return getattr(kind, self.function or f"conv{len(self.weight) - 2}d")

    def tensors(self) -> list[Tensor]:
        """Numbers for the image, the weight and, where there is one, the bias."""
        generator = torch.Generator().manual_seed(0)
        shapes = [self.image, self.weight, *([] if self.bias is None else [(self.bias,)])]
        return [torch.randn(each, generator=generator) for each in shapes]


CASES = (
    # Padding that is larger than the image, and than the kernel.
    Case("padding beyond the image 1d", (2, 3, 4), (5, 3, 3), 5, {"padding": 9}),
    Case("padding beyond the image 2d", (1, 3, 4, 5), (5, 3, 3, 2), 5, {"padding": (11, 7)}),
    Case("padding beyond the image 3d", (1, 2, 2, 3, 2), (3, 2, 2, 3, 1), 3, {"padding": (5, 4, 6)}),
    Case("padding and a wide step", (1, 3, 4, 5), (5, 3, 3, 3), 5, {"padding": 20, "stride": 7}),
    Case("an image smaller than the kernel", (2, 3, 2, 2), (4, 3, 5, 5), 4, {"padding": 2}),
    # Nothing to convolve.
    Case("no images 1d", (0, 3, 9), (5, 3, 3), 5),
    Case("no images 2d", (0, 3, 9, 8), (5, 3, 3, 3), 5, {"padding": 1}),
    Case("no images 3d", (0, 2, 4, 5, 4), (3, 2, 2, 2, 2), None),
    Case("no images of groups", (0, 4, 9, 8), (4, 2, 3, 3), 4, {"groups": 2}),
    Case("no images, transposed", (0, 4, 5, 4), (4, 3, 3, 3), 3, {}, "conv_transpose2d"),
    Case("no images of groups, transposed", (0, 4, 5, 4), (4, 2, 3, 3), 4, {"groups": 2}, "conv_transpose2d"),
    Case("no channels 1d", (2, 0, 9), (5, 0, 3), 5),
    Case("no channels 2d", (2, 0, 9, 8), (5, 0, 3, 3), 5),
    # What is seldom seen.
    Case("kernels of one", (2, 3, 9, 8), (5, 3, 1, 1), 5, {"stride": 3}),
    Case("one channel for all", (2, 1, 9, 8), (4, 1, 3, 3), 4),
    Case("depthwise, several outputs", (2, 4, 9, 8), (12, 1, 3, 3), 12, {"groups": 4, "padding": 1}),
    Case("dilated and stepped", (2, 3, 13, 14), (4, 3, 3, 3), 4, {"stride": (2, 3), "dilation": (3, 2), "padding": 4}),
    Case("same, even kernel", (2, 3, 9, 8), (4, 3, 4, 2), 4, {"padding": "same"}),
    Case("same, dilated", (2, 3, 9, 8), (4, 3, 3, 3), 4, {"padding": "same", "dilation": (3, 2)}),
    Case("valid", (2, 3, 9, 8), (4, 3, 4, 2), 4, {"padding": "valid"}),
    Case("a long row", (1, 1, 1, 3000), (1, 1, 1, 1700), None),
    Case("transposed, output padding", (2, 4, 5, 4), (4, 3, 3, 3), 3, {"stride": 3, "output_padding": 2}, "conv_transpose2d"),
    Case("transposed, groups and dilation", (2, 4, 5, 4), (4, 2, 3, 3), 4, {"groups": 2, "dilation": 2, "padding": 1}, "conv_transpose2d"),
    Case("transposed 1d", (2, 4, 7), (4, 3, 3), 3, {"stride": 2, "padding": 1}, "conv_transpose1d"),
    Case("transposed 3d", (1, 2, 3, 4, 3), (2, 3, 2, 2, 2), 3, {"stride": 2}, "conv_transpose3d"),
)  # fmt: skip
SAME_WARNING = "ignore:Using padding='same' with even kernel lengths:UserWarning"


def list_asked(case: Case) -> list[tuple[bool, ...]]:
    """Which of the tensors need a gradient."""
    return list(itertools.product([False, True], repeat=2 if case.bias is None else 3))


@pytest.mark.filterwarnings(SAME_WARNING)
@pytest.mark.parametrize(
    ("case", "asked"), [(case, asked) for case in CASES for asked in list_asked(case)], ids=str
)
def test_outputs_and_those_gradients_that_are_asked_for(
    case: Case, asked: tuple[bool, ...]
) -> None:
    leaves = case.tensors()
    ours = [each.clone().requires_grad_(need) for each, need in zip(leaves, asked, strict=True)]
    theirs = [each.double().requires_grad_(need) for each, need in zip(leaves, asked, strict=True)]
    found, expected = case.find(sh)(*ours, **case.options), case.find(F)(*theirs, **case.options)
    assert found.shape == expected.shape
    assert found.requires_grad == expected.requires_grad == any(asked)
    require_close(found, expected)
    if not any(asked):
        return
    factors = torch.randn_like(expected)
    (found * factors.float()).sum().backward()
    (expected * factors).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            require_close(one.grad, other.grad)


def lay(tensor: Tensor, how: str) -> Tensor:
    """The same numbers in memory of this kind."""
    if how == "channels last":
        return tensor.contiguous(memory_format=LAST[tensor.dim()])
    if how == "strided":
        return torch.stack([tensor, tensor + 1], -1)[..., 0]
    return tensor


@pytest.mark.parametrize("how_weight", ["contiguous", "channels last", "strided"])
@pytest.mark.parametrize("how_image", ["contiguous", "channels last", "strided"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("function", ["conv2d", "conv_transpose2d", "conv3d", "conv_transpose3d"])
def test_memory_formats_of_outputs_and_gradients(
    function: str, groups: int, how_image: str, how_weight: str
) -> None:
    """Numbers as PyTorch has them, and channels last wherever PyTorch has them."""
    dimensions = int(function[-2])
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 4, *SIDES[dimensions], generator=generator)
    weight = torch.randn(8, 4 // groups, *[3] * dimensions, generator=generator)
    if "transpose" in function:
        weight = torch.randn(4, 8 // groups, *[3] * dimensions, generator=generator)
    given = [lay(image, how_image), lay(weight, how_weight)]
    ours = [each.detach().requires_grad_() for each in given]
    theirs = [each.detach().requires_grad_() for each in given]
    exact = [each.detach().double().requires_grad_() for each in given]
    results = [
        getattr(kind, function)(*leaves, padding=1, groups=groups)
        for kind, leaves in ((sh, ours), (F, theirs), (F, exact))
    ]
    require_close(results[0], results[2])
    last = LAST[dimensions + 2]
    if results[1].is_contiguous(memory_format=last):
        assert results[0].is_contiguous(memory_format=last)
    factors = torch.randn(results[0].shape, generator=generator)
    for result in results:
        result.backward(factors.to(result.dtype))
    for one, other, wide in zip(ours, theirs, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        require_close(one.grad, wide.grad)
        assert one.grad.is_contiguous() or one.grad.is_contiguous(memory_format=last)


MISMATCHES = {
    "weight": (torch.float32, torch.float64, torch.float32),
    "bias": (torch.float32, torch.float32, torch.float64),
    "half and float": (torch.float32, torch.float16, torch.float16),
    "bfloat16 and float": (torch.bfloat16, torch.float32, torch.float32),
    "whole numbers": (torch.int64, torch.float32, torch.float32),
    "complex": (torch.float32, torch.complex64, torch.float32),
}


@pytest.mark.parametrize("function", ["conv1d", "conv2d", "conv3d", "conv_transpose2d"])
@pytest.mark.parametrize("kind", MISMATCHES)
def test_dtypes_that_differ_are_refused_as_by_pytorch(kind: str, function: str) -> None:
    dimensions = int(function[-2])
    shapes = ((2, 4, *SIDES[dimensions]), (4, 4, *[3] * dimensions), (4,))
    given = [torch.ones(each, dtype=to) for each, to in zip(shapes, MISMATCHES[kind], strict=True)]
    with pytest.raises(RuntimeError):
        getattr(F, function)(*given)
    with pytest.raises(RuntimeError, match=r"dtype|same|kind"):
        getattr(sh, function)(*given)


@pytest.mark.parametrize(
    ("image", "weight", "options"),
    [
        ((2, 3, 4, 4), (4, 3, 5, 5), {}),  # the kernel does not fit
        ((2, 3, 9, 9), (4, 3, 3, 3), {"dilation": 5}),
        ((2, 3, 9, 9), (4, 2, 3, 3), {}),  # channels
        ((2, 3, 9, 9), (4, 3, 3), {}),  # dimensions
        ((3, 9), (4, 3, 3, 3), {}),
        ((2, 3, 9, 9), (4, 3, 3, 3), {"stride": 0}),
        ((2, 3, 9, 9), (4, 3, 3, 3), {"padding": -1}),
        ((2, 3, 9, 9), (4, 3, 3, 3), {"groups": 2}),
        ((2, 4, 9, 9), (3, 2, 3, 3), {"groups": 2}),
        ((2, 3, 9, 9), (4, 3, 3, 3), {"padding": "same", "stride": 2}),
        ((2, 3, 9, 9), (4, 3, 3, 3), {"padding": "other"}),
        ((2, 3, 9, 9), (4, 3, 3, 3), {"stride": (1, 2, 3)}),
    ],
)
def test_what_pytorch_refuses_is_refused(
    image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    given = torch.randn(image), torch.randn(weight)
    with pytest.raises((RuntimeError, ValueError)):
        F.conv2d(*given, **options)
    with pytest.raises(sh.errors.ConvolutionError):
        sh.conv2d(*given, **options)


@pytest.mark.parametrize(
    "needs", [each for each in itertools.product([False, True], repeat=2) if any(each)], ids=str
)
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"stride": 2, "padding": 1}], ids=str)
def test_gradients_of_gradients(options: dict[str, Any], needs: tuple[bool, bool]) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 4, 6, 5, generator=generator, dtype=torch.float64)
    weight = torch.randn(
        4, 4 // options.get("groups", 1), 3, 3, generator=generator, dtype=torch.float64
    )
    leaves = [each.requires_grad_(need) for each, need in zip((image, weight), needs, strict=True)]
    asked = [each for each in leaves if each.requires_grad]

    def differentiate(kind: Any) -> list[Tensor]:
        output = kind.conv2d(*leaves, **options).square()
        first = torch.autograd.grad(output.sum(), asked, create_graph=True)
        return list(torch.autograd.grad(sum(each.square().sum() for each in first), asked))

    for one, other in zip(differentiate(sh), differentiate(F), strict=True):
        require_close(one, other)
