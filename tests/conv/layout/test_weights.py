"""How weights lie for a kernel, before anything is moved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shorthaul.conv.layout.weights import (
    BundledPanels,
    ChannelPanels,
    PairedPanels,
    WeightLayout,
    bias_view,
    forward_view,
    gradient_view,
)
from shorthaul.conv.problem.geometry import KernelShape, Taps

SHAPE = KernelShape(3, 12, 4, (1, 3, 3), (1, 1, 1), (1, 1, 1))
DEPTHWISE = replace(SHAPE, in_channels=1, out_channels=1, groups=20)
TAPS = Taps((0, 0, 1), (1, 1, 1))


def test_equal_layouts_share_copies_and_others_do_not() -> None:
    one = WeightLayout(SHAPE, torch.float32, 8, 8)
    others = (
        WeightLayout(SHAPE, torch.float32, 16, 8),
        WeightLayout(SHAPE, torch.float32, 8, 8, TAPS),
        WeightLayout(SHAPE, torch.float32, 8, 8, channel_chunk=2),
        WeightLayout(replace(SHAPE, groups=2), torch.float32, 8, 8),
        ChannelPanels(SHAPE, torch.float32, 8, 8),
        BundledPanels(SHAPE, torch.float32, 8, 8, bundled=2),
    )
    assert one.name == WeightLayout(SHAPE, torch.float32, 8, 8).name
    assert len({each.name for each in (one, *others)}) == 7


@pytest.mark.parametrize(
    ("panel", "lanes", "is_packed"), [(4, 4, False), (8, 4, True), (5, 1, False)]
)
def test_a_bias_is_packed_where_panels_have_to_be_filled_up(
    panel: int, lanes: int, is_packed: bool
) -> None:
    view = WeightLayout(SHAPE, torch.float32, panel, lanes).bias_view
    assert view == (bias_view(4, 12) if is_packed else None)


def test_channels_and_bundles_have_a_bias_of_their_own_order() -> None:
    assert ChannelPanels(DEPTHWISE, torch.float32, 24, 8).bias_view == bias_view(1, 20)
    assert ChannelPanels(DEPTHWISE, torch.float32, 20, 4).bias_view is None
    assert BundledPanels(SHAPE, torch.float32, 12, 12).bias_view is None
    bundled = BundledPanels(SHAPE, torch.float32, 2, 2, bundled=2).bias_view
    assert bundled is not None
    assert (bundled.groups, bundled.out_channels, bundled.group_step) == (2, 2, 24)


def test_weights_get_their_leading_dimensions_and_the_type_of_sums() -> None:
    weight = torch.randn(48, 3, 3, 3).to(torch.bfloat16).transpose(2, 3)
    layout = WeightLayout(SHAPE, torch.float32, 8, 8)
    prepared = layout.prepare(weight, (48, 3, 1, 3, 3))
    assert torch.equal(prepared, weight.float().unsqueeze(2))
    assert layout.view(prepared) == forward_view(prepared, 4)
    turned = replace(layout, taps=TAPS)
    assert turned.view(prepared) == gradient_view(prepared, 4, TAPS, SHAPE.kernel)
    assert layout.only_moves


def test_depthwise_weights_are_channels_of_one_group() -> None:
    weight = torch.randn(20, 1, 1, 3, 3)
    view = ChannelPanels(DEPTHWISE, torch.float32, 24, 8).view(weight)
    assert (view.groups, view.out_channels, view.out_step) == (1, 20, 9)


def test_pairs_are_half_as_many_values() -> None:
    weight = torch.randn(48, 3, 1, 3, 3).to(torch.bfloat16)
    layout = PairedPanels(SHAPE, torch.float32, 8, 8, run_order="taps")
    assert layout.prepare(weight, tuple(weight.shape)).shape == (48, 2, 1, 9, 1)
    assert not layout.only_moves
