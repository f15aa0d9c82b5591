"""Packed weights against plain loops, and when a packed copy is used again."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
import torch

from shorthaul.conv.execution.packing import PackedWeights, pack_panels, panel_kernel
from shorthaul.conv.functional import conv2d
from shorthaul.conv.layout.weights import (
    WeightView,
    bundle_groups,
    forward_view,
    gradient_view,
    packed_values,
    turn_weights,
)
from shorthaul.conv.problem.geometry import Taps
from tests.conv.tolerances import require_close


def place_in_panels(
    view: WeightView, value_at: Callable[..., float], panel: int, lanes: int
) -> dict[int, float]:
    """Position of each packed value, by the order that `pack_panels` states."""
    placed = {}
    depth, height, width = view.kernel
    panels = -(-view.out_channels // panel)
    rows = width * depth * height * view.in_channels
    for group, which in product(range(view.groups), range(panels)):
        first = which * panel
        present = min(panel, view.out_channels - first)
        wide = -(-present // lanes) * lanes
        at = (group * panels + which) * rows * panel
        chunk = view.channel_chunk or view.in_channels
        for begin in range(0, view.in_channels, chunk):
            channels = range(begin, min(begin + chunk, view.in_channels))
            for w, d, h, channel in product(range(width), range(depth), range(height), channels):
                for lane in range(wide):
                    is_filling = lane >= present
                    placed[at + lane] = (
                        0.0 if is_filling else value_at(group, first + lane, channel, d, h, w)
                    )
                at += wide
    return placed


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=dtype).reshape(shape)


SHAPES = (
    # weights, groups, panel, lanes
    ((19, 5, 1, 3, 3), 1, 16, 8),
    ((6, 2, 2, 1, 3), 3, 16, 8),
    ((32, 3, 1, 1, 1), 1, 32, 16),  # AVX-512: a full panel
    ((7, 2, 2, 3, 2), 1, 3, 1),  # planar kernels: no vectors of channels
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize(("shape", "groups", "panel", "lanes"), SHAPES)
def test_forward_panels(
    shape: tuple[int, ...], groups: int, panel: int, lanes: int, chunk: int, dtype: torch.dtype
) -> None:
    weight = numbered(*shape, dtype=dtype)
    view = replace(forward_view(weight, groups), channel_chunk=chunk)
    packed = pack_panels(weight, view, panel, lanes, dtype)
    per_group = shape[0] // groups

    def value_at(group: int, out: int, channel: int, d: int, h: int, w: int) -> float:
        return float(weight[group * per_group + out, channel, d, h, w])

    placed = place_in_panels(view, value_at, panel, lanes)
    assert packed.numel() == packed_values(view, panel) > max(placed)
    assert {at: float(packed[at]) for at in placed} == placed


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize(("shape", "groups", "panel", "lanes"), SHAPES)
def test_unpacking_is_the_way_back(
    shape: tuple[int, ...],
    groups: int,
    panel: int,
    lanes: int,
    chunk: int,
    layout: torch.memory_format,
) -> None:
    weight = numbered(*shape).contiguous(memory_format=layout)
    view = replace(forward_view(weight, groups), channel_chunk=chunk)
    packed = pack_panels(weight, view, panel, lanes, torch.float32)
    back = torch.zeros_like(weight)
    panel_kernel(torch.float32).unpack_panels(packed, back, *view.numbers(), panel, lanes)
    assert torch.equal(back, weight)


def test_weights_in_other_strides_pack_the_same() -> None:
    weight = numbered(19, 5, 1, 3, 3)
    turned = weight.contiguous(memory_format=torch.channels_last_3d)
    one, other = (
        pack_panels(each, forward_view(each, 1), 19, 1, torch.float32) for each in (weight, turned)
    )
    assert torch.equal(one, other)


def test_gradient_panels_swap_channels_and_turn_taps_around() -> None:
    weight = numbered(6, 4, 1, 3, 5)  # two groups of three
    taps, kernel = Taps((0, 1, 0), (1, 2, 2)), (1, 1, 3)  # every second tap of a stride of two
    view = gradient_view(weight, 2, taps, kernel)
    packed = pack_panels(weight, view, 8, 8, torch.float32)

    def value_at(group: int, out: int, channel: int, d: int, h: int, w: int) -> float:
        return float(weight[group * 3 + channel, out, d, 1 + 2 * h, 2 * (2 - w)])

    placed = place_in_panels(view, value_at, 8, 8)
    assert (view.out_channels, view.in_channels) == (4, 3)
    assert {at: float(packed[at]) for at in placed} == placed


def test_bundled_groups_lie_side_by_side() -> None:
    weight = torch.randn(4 * 3, 2, 1, 3, 5)  # four groups of 2 to 3 channels
    view = bundle_groups(forward_view(weight, 4), 2)
    packed = pack_panels(weight, view, 2, 2, torch.float32)
    groups = weight.reshape(2, 2, 3, 2, 3, 5)  # bundle, group of it, output, input, row, column
    assert torch.equal(packed, groups.permute(0, 5, 4, 3, 2, 1).reshape(-1))


def test_bundled_groups_of_a_gradient_are_turned_around() -> None:
    weight = torch.randn(4 * 3, 2, 1, 3, 5)
    kernel, taps = (1, 2, 3), Taps((0, 1, 0), (1, 1, 2))
    view = bundle_groups(gradient_view(weight, 4, taps, kernel), 2)
    packed = pack_panels(weight, view, 2, 2, torch.float32)
    turned = turn_weights(weight, 4, taps, kernel)
    groups = turned.reshape(2, 2, 2, 3, 2, 3)
    assert torch.equal(packed, groups.permute(0, 5, 4, 3, 2, 1).reshape(-1))


@dataclass
class CountingPacker:
    """A cache, and how often it had to pack."""

    cache: PackedWeights = field(default_factory=PackedWeights)
    packs: int = 0

    def find(self, weight: torch.Tensor, order: object = "forward") -> torch.Tensor:
        def pack() -> torch.Tensor:
            self.packs += 1
            return weight.detach().clone()

        found: torch.Tensor = self.cache.find(weight, order, pack)
        return found


class TestPackedWeights:
    def test_a_copy_is_found_again(self) -> None:
        packer, weight = CountingPacker(), torch.nn.Parameter(numbered(8, 8, 3, 3))
        first = packer.find(weight)
        assert packer.find(weight) is first
        assert (packer.packs, len(packer.cache)) == (1, 1)

    def test_each_order_has_a_copy(self) -> None:
        packer, weight = CountingPacker(), numbered(8, 8, 3, 3)
        first, other = packer.find(weight), packer.find(weight, "gradient")
        assert first is not other
        assert packer.find(weight) is first
        assert packer.find(weight, "gradient") is other
        assert (packer.packs, len(packer.cache)) == (2, 1)

    def test_a_new_version_drops_all_orders(self) -> None:
        packer, weight = CountingPacker(), numbered(8, 8, 3, 3)
        for order in ("forward", "gradient"):
            packer.find(weight, order)
        weight[3, 2, 1, 1] = -1.0
        for order in ("forward", "gradient"):
            assert torch.equal(packer.find(weight, order), weight)
        assert packer.packs == 4

    def test_another_tensor_on_the_same_memory_has_its_own(self) -> None:
        packer, weight = CountingPacker(), numbered(8, 8, 3, 3)
        other = weight.view(8, 8, 9)
        assert other.data_ptr() == weight.data_ptr()
        assert packer.find(weight).shape != packer.find(other).shape
        assert len(packer.cache) == 2

    def test_a_later_tensor_at_the_same_address_does_not_inherit(self) -> None:
        packer, memory = CountingPacker(), numbered(8 * 8 * 9)
        for shape in ((8, 8, 3, 3), (4, 16, 3, 3), (16, 4, 3, 3)):
            weight = memory.view(shape)  # often even the same `id` as the one before
            assert packer.find(weight).shape == shape
            del weight
        assert packer.packs == 3

    def test_the_same_tensor_on_other_memory(self) -> None:
        packer, weight = CountingPacker(), torch.nn.Parameter(numbered(8, 8, 3, 3))
        packer.find(weight)
        weight.data = numbered(8, 8, 3, 3)  # the same values, at another address
        packer.find(weight)
        assert packer.packs == 1
        weight.data = numbered(8, 8, 3, 3) + 1
        assert torch.equal(packer.find(weight), weight)

    def test_the_same_bytes_in_other_strides_or_of_another_dtype(self) -> None:
        packer = CountingPacker()
        weight = torch.nn.Parameter(torch.ones(4, 4, 3, 3, dtype=torch.bfloat16))
        packer.find(weight)
        weight.data = weight.data.to(memory_format=torch.channels_last)
        assert packer.find(weight).stride() == weight.stride()
        weight.data = weight.data.view(torch.float16)
        assert packer.find(weight).dtype == torch.float16
        assert packer.packs == 3

    def test_a_copy_goes_with_its_tensor(self) -> None:
        packer, weight = CountingPacker(), numbered(8, 8, 3, 3)
        packer.find(weight)
        del weight
        gc.collect()
        assert len(packer.cache) == 0

    def test_little_is_kept_of_tensors_that_are_gone(self) -> None:
        packer, weights = CountingPacker(), [numbered(2, 2) for _ in range(300)]
        for each in weights:
            packer.find(each)
        assert len(packer.cache) == len(packer.cache._references) == 300
        del weights, each
        weight = numbered(2, 2)
        packer.find(weight)
        assert len(packer.cache) == len(packer.cache._references) == 1

    def test_inference_tensors_are_kept_until_they_change(self) -> None:
        packer = CountingPacker()
        with torch.inference_mode():
            weight = numbered(8, 8, 3, 3)
            assert packer.find(weight) is packer.find(weight)
            weight.mul_(2)  # has no version that would tell
            assert torch.equal(packer.find(weight), weight)
        assert (packer.packs, len(packer.cache)) == (2, 1)

    def test_a_write_while_packing_is_not_taken_for_what_was_there_before(self) -> None:
        cache, weight = PackedWeights(), numbered(8, 8, 3, 3)
        before = weight.clone()

        def pack_late() -> torch.Tensor:  # another thread has written when the values are read
            weight.data.mul_(2)
            return weight.clone()

        cache.find(weight, "forward", pack_late)
        weight.data.copy_(before)
        assert torch.equal(cache.find(weight, "forward", weight.clone), before)

    def test_a_scale_that_is_written_through_data(self) -> None:
        cache, weight, scale = PackedWeights(), numbered(8, 8), torch.ones(8)

        def pack() -> torch.Tensor:
            return weight * scale

        assert cache.find(weight, "forward", pack, scale) is cache.find(
            weight, "forward", pack, scale
        )
        scale.data[5] = 2
        assert torch.equal(cache.find(weight, "forward", pack, scale), pack())

    @pytest.mark.parametrize(
        "write",
        [
            lambda data: data.mul_(2),
            lambda data: data.neg_(),
            lambda data: data.copy_(torch.randn(data.shape)),
            lambda data: data.add_(torch.full(data.shape, 0.5)),
            lambda data: data[3].zero_(),  # one filter of sixteen
            lambda data: data[..., 1, 1].zero_(),  # one tap of all
            lambda data: data[9, 3].neg_(),
            lambda data: data[9, 3, 1].mul_(-1),  # three values
            lambda data: (
                data.view(torch.uint8).view(-1)[1001].bitwise_xor_(1)
                if data.is_contiguous()
                else data[1, 1, 1, 1].add_(1)
            ),
            lambda data: data[5, 5, 0, 0].copy_(data[5, 5, 0, 0] * 1.01),  # one value
            lambda data: data.copy_(data.flip(0)),  # the same values elsewhere
        ],
    )
    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_writes_through_data_are_noticed(
        self,
        write: Callable[[torch.Tensor], object],
        layout: torch.memory_format,
        dtype: torch.dtype,
    ) -> None:
        torch.manual_seed(0)
        values = torch.randn(16, 16, 3, 3, dtype=dtype).to(memory_format=layout)
        packer, weight = CountingPacker(), torch.nn.Parameter(values)
        packer.find(weight)
        version = weight._version
        write(weight.data)
        assert weight._version == version
        assert torch.equal(packer.find(weight), weight)

    def test_writes_through_data_of_a_slice_are_noticed(self) -> None:
        packer, weight = CountingPacker(), numbered(16, 16, 5, 5)[:, ::2, 1:4, 1:4]
        packer.find(weight)
        weight.data.mul_(2)
        assert torch.equal(packer.find(weight), weight)

    def test_weights_with_nan_are_never_mistaken(self) -> None:
        packer, weight = CountingPacker(), torch.full((4, 4, 3, 3), torch.nan)
        packer.find(weight)
        weight.data.fill_(1)
        assert torch.equal(packer.find(weight), weight)

    @pytest.mark.parametrize("channels", [16, 64])  # compared, and hashed
    def test_one_value_is_noticed_wherever_it_lies(self, channels: int) -> None:
        packer, weight = CountingPacker(), torch.nn.Parameter(torch.randn(channels, channels, 3, 3))
        packer.find(weight)
        generator = torch.Generator().manual_seed(0)
        for position in torch.randperm(weight.numel(), generator=generator)[:200].tolist():
            weight.data.view(-1)[position] += 1
            assert torch.equal(packer.find(weight), weight)
        weight.detach().numpy()[3, 2, 1, 0] = 7
        assert torch.equal(packer.find(weight), weight)


class DataSGD:
    """An optimizer of the old kind: its writes raise no version."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters

    def step(self) -> None:
        for each in self.parameters:
            assert each.grad is not None
            each.data.add_(each.grad.data, alpha=-0.1)


class TestThroughConvolutions:
    @pytest.mark.parametrize(
        "write",
        [
            lambda weight: weight.data.mul_(2),
            lambda weight: weight.data.copy_(torch.ones(4, 3, 3, 3)),
            lambda weight: weight.detach().add_(1),
        ],
    )
    def test_inference_sees_what_was_written(
        self, write: Callable[[torch.nn.Parameter], object]
    ) -> None:
        image, weight = torch.randn(1, 3, 6, 6), torch.nn.Parameter(torch.randn(4, 3, 3, 3))
        with torch.no_grad():
            before = conv2d(image, weight)
            write(weight)
            after = conv2d(image, weight)
            require_close(after, torch.conv2d(image, weight))
        assert not torch.equal(before, after)

    def test_a_bias_that_is_written_through_data(self) -> None:
        # 19 channels are no whole number of vectors, so the bias is filled up and remembered.
        image, weight = torch.randn(1, 5, 6, 6), torch.randn(19, 5, 3, 3)
        image = image.to(memory_format=torch.channels_last)
        bias = torch.nn.Parameter(torch.randn(19))
        with torch.no_grad():
            for _ in range(2):
                require_close(conv2d(image, weight, bias), torch.conv2d(image, weight, bias))
                bias.data[2] += 1

    def test_training_with_an_optimizer_that_uses_data(self) -> None:
        torch.manual_seed(0)
        image, weight = torch.randn(1, 3, 6, 6), torch.nn.Parameter(torch.randn(4, 3, 3, 3))
        optimizer = DataSGD([weight])
        for _ in range(3):
            weight.grad = None
            conv2d(image, weight).pow(2).mean().backward()
            optimizer.step()
            with torch.no_grad():  # evaluation between steps
                require_close(conv2d(image, weight), torch.conv2d(image, weight))
