"""Local ids by the order of appearance, and what one launch is compiled for."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.graphs.sampling.device.hops import (
    MOST_MEMBERS,
    DeviceTopology,
    choose_draw_block,
    draw_hop,
    relabel,
)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("known", [0, 1, 20])
@pytest.mark.parametrize("met", [0, 1, 300])
def test_ids_are_given_in_the_order_of_appearance(known: int, met: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(known * 1000 + met)
    nodes = torch.randperm(50, generator=draw)[:known].to(dtype)
    others = torch.randint(50, (met,), generator=draw).to(dtype)
    places = dict(zip(nodes.tolist(), range(known), strict=True))
    expected = [places.setdefault(each, len(places)) for each in others.tolist()]
    all_nodes, local = relabel(nodes, others)
    assert (all_nodes.tolist(), local.tolist()) == ([*places], expected)
    assert all_nodes.dtype is local.dtype is dtype


def test_every_set_fits_the_program_that_holds_it() -> None:
    for fan_out in range(1, MOST_MEMBERS + 1):
        block = choose_draw_block(fan_out, replace=False)
        assert fan_out <= block["MEMBERS"] < 2 * fan_out
        assert block["BLOCK"] * block["MEMBERS"] <= MOST_MEMBERS


@pytest.mark.parametrize("fan_out", [2**31, 2**62])
def test_more_edges_than_can_be_counted_are_refused_before_they_are_drawn(fan_out: int) -> None:
    topology = DeviceTopology(*(torch.tensor(each, dtype=torch.int32) for each in ([0, 1, 1], [1])))
    targets, keys = torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(OverflowError):
        draw_hop(topology, targets, fan_out, keys, 0, replace=True)
    nobody = draw_hop(topology, targets[1:], fan_out, keys, 0, replace=True)
    assert nobody.offsets.tolist() == [0, 0]
