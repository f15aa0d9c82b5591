"""int8 weights: their error, their bytes, and that they come back from a state dict."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shorthaul.conv import Conv2d, quantize_weights
from shorthaul.conv.models.quantize import LARGEST, quantize, widen
from shorthaul.errors import ConvolutionError
from tests.conv.tolerances import require_close


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(4, 9, 3, padding=1), nn.ReLU(), Conv2d(9, 6, 3, groups=3, activation="relu")
    ).eval()


@given(st.integers(0, 2**31), st.integers(1, 5))
def test_the_error_is_at_most_half_a_step(seed: int, channels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(channels, 3, 3, generator=generator)
    weight *= torch.logspace(-6, 3, channels).view(-1, 1, 1)
    values, scale = quantize(weight)
    assert values.abs().max() <= LARGEST
    error = (widen(values, scale, torch.float32) - weight).abs().flatten(1).amax(1)
    assert bool((error <= 0.5001 * scale).all())


def test_a_channel_of_zeros_stays_zero() -> None:
    values, scale = quantize(torch.zeros(2, 3))
    assert not values.any()
    assert not scale.any()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_layer_is_the_layer_of_its_rounded_weights(memory_format: torch.memory_format) -> None:
    quantized, plain = model(), model()
    quantize_weights(quantized)
    for place in (0, 2):
        layer = quantized[place]
        with torch.no_grad():
            plain[place].weight.copy_(widen(layer.weight, layer.weight_scale, torch.float32))
    image = torch.randn(2, 4, 10, 11).to(memory_format=memory_format)
    with torch.no_grad():
        require_close(quantized(image), plain(image))
        require_close(quantized(image[0]), plain(image)[0])
    # With a graph behind it the input still has its gradient.
    image.requires_grad_()
    require_close(
        torch.autograd.grad(quantized(image).sum(), image)[0],
        torch.autograd.grad(plain(image).sum(), image)[0],
    )


def test_the_report_counts_bytes_and_error() -> None:
    quantized = model()
    report = quantize_weights(quantized)
    first = report.layers[0]
    assert (first.bytes_before, first.bytes_after) == (9 * 36 * 4, 9 * 36 + 9 * 4)
    assert 0 < first.error <= 0.5 / LARGEST + 1e-6
    stored = sum(each.numel() * each.element_size() for each in quantized[0].state_dict().values())
    assert stored == first.bytes_after + 9 * 4  # and the bias
    assert report.table().row_count == 2


def test_a_state_dict_comes_back_and_new_values_are_seen() -> None:
    first, second = model(0), model(1)
    quantize_weights(first)
    quantize_weights(second)
    image = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        expected = first(image)
        assert not torch.equal(second(image), expected)
        second.load_state_dict(first.state_dict())
        assert torch.equal(second(image), expected)


def test_a_changed_scale_is_seen() -> None:
    quantized = model()[:1]
    quantize_weights(quantized)
    image = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        quantized[0].bias.zero_()
        before = quantized(image)
        quantized[0].weight_scale.mul_(2)
        assert torch.equal(quantized(image), 2 * before)


def test_a_model_without_convolutions_is_an_error() -> None:
    with pytest.raises(ConvolutionError, match="there is no convolution to quantize"):
        quantize_weights(nn.Linear(2, 2))


def test_values_and_scales_that_are_written_through_data() -> None:
    quantized, image = model(), torch.randn(2, 4, 10, 11)
    quantize_weights(quantized)
    layer = quantized[0]
    with torch.no_grad():
        for write in (
            lambda: layer.weight_scale.data[3].mul_(5),
            lambda: layer.weight.data[2, 1, 0, 0].fill_(99),
        ):
            layer(image)
            write()
            widened = widen(layer.weight, layer.weight_scale, torch.float32)
            require_close(layer(image), torch.conv2d(image, widened, layer.bias, padding=1))
