"""Where convolutions are other than PyTorch's: the table in docs/conv.md, line by line."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import shorthaul as sh
from shorthaul.errors import ConvolutionError

IMAGES = {1: (2, 4, 9), 2: (2, 4, 9, 9), 3: (1, 4, 5, 5, 5)}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def tensors(dimensions: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(IMAGES[dimensions]), torch.randn(6, 4, *[3] * dimensions)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_out_without_elements_is_resized(dimensions: int) -> None:
    image, weight = tensors(dimensions)
    out = torch.empty(0)
    assert getattr(sh, f"conv{dimensions}d")(image, weight, out=out) is out
    torch.testing.assert_close(out, getattr(F, f"conv{dimensions}d")(image, weight))
    alone = torch.empty(0, 3)
    getattr(sh, f"conv{dimensions}d")(image[0], weight, out=alone)
    torch.testing.assert_close(alone, getattr(F, f"conv{dimensions}d")(image[0], weight))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_out_is_resized_to_the_layout_of_the_output(dimensions: int) -> None:
    image, weight = tensors(dimensions)
    image = image.contiguous(memory_format=LAST[dimensions])
    out = torch.empty(0)
    getattr(sh, f"conv{dimensions}d")(image, weight, out=out)
    assert out.is_contiguous(memory_format=LAST[dimensions])
    torch.testing.assert_close(out, getattr(F, f"conv{dimensions}d")(image, weight))


@pytest.mark.parametrize("shape", [(3,), (5, 2, 6, 7, 7), (2, 6, 7, 8), (1, 6, 7, 7)])
def test_out_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    out = torch.full(shape, 7.0)
    with pytest.raises(ConvolutionError, match=r"must be torch\.float32 of shape \(2, 6, 7, 7\)"):
        sh.conv2d(torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), out=out)
    assert torch.equal(out, torch.full(shape, 7.0))


def test_out_of_images_without_channels_is_resized() -> None:
    image, weight = torch.randn(2, 0, 9, 9), torch.randn(6, 0, 3, 3)
    out = torch.empty(0)
    assert sh.conv2d(image, weight, out=out) is out
    assert out.shape == F.conv2d(image, weight).shape


def test_out_has_no_gradient() -> None:
    image, weight = tensors(2)
    for leaf in (image, weight):
        with pytest.raises(ConvolutionError, match="has no gradient and no graph"):
            sh.conv2d(
                image.clone().requires_grad_(leaf is image),
                weight.clone().requires_grad_(leaf is weight),
                out=torch.empty(2, 6, 7, 7),
            )


@pytest.mark.parametrize("name", ["conv3d", "conv_transpose3d"])
def test_a_small_volume_stays_channels_last(name: str) -> None:
    image, weight = tensors(3)
    image = image.contiguous(memory_format=torch.channels_last_3d)
    weight = weight if name == "conv3d" else weight.transpose(0, 1).contiguous()
    found, expected = getattr(sh, name)(image, weight), getattr(F, name)(image, weight)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
    assert not expected.is_contiguous(memory_format=torch.channels_last_3d)


def test_copies_that_wait_are_made_when_they_are_read() -> None:
    image, weight = tensors(2)
    lazy = torch._lazy_clone(image)
    torch.testing.assert_close(sh.conv2d(lazy, weight), F.conv2d(image, weight))
    assert not torch._C._is_cow_tensor(lazy)
    lazy.zero_()
    assert image.abs().sum() > 0


@pytest.mark.parametrize("kind", ["to_sparse", "to_mkldnn"])
def test_other_layouts_are_refused_by_name(kind: str) -> None:
    image, weight = tensors(2)
    for given in ((getattr(image, kind)(), weight), (image, getattr(weight, kind)())):
        with pytest.raises(
            ConvolutionError, match=r"Expected a dense (input|weight) .* \.to_dense"
        ):
            sh.conv2d(*given)


def test_errors_are_those_of_pytorch_too() -> None:
    with pytest.raises(RuntimeError):
        sh.conv2d(*tensors(3))
    assert issubclass(ConvolutionError, RuntimeError)
