"""Samples of a whole graph on a device: hops drawn one after the other, and blocks made of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shorthaul.graphs.index.indexes import TargetIndex
from shorthaul.graphs.sampling.blocks import Block, NeighborSample
from shorthaul.graphs.sampling.device.hops import DeviceTopology, draw_hop, relabel
from shorthaul.graphs.sampling.plain import GOLDEN, mix
from shorthaul.graphs.sampling.streams import as_signed
from shorthaul.jit.launching.device_guard import computing_on

_MASK = 2**64 - 1


def draw_sample(
    topology: DeviceTopology,
    index: TargetIndex,
    seeds: torch.Tensor,
    fan_outs: Sequence[int],
    key: int,
    number: int,
    *,
    replace: bool,
    resample: bool,
) -> NeighborSample:
    """The blocks around `seeds`, which are in range and on the device, as are the blocks.

    `OverflowError` where a hop has more edges than the index's dtype can count.
    """
    with computing_on(seeds.device):
        keys = [as_signed(mix((key + GOLDEN * (hop + 1)) & _MASK)) for hop in range(len(fan_outs))]
        of_hops = torch.tensor(keys, dtype=torch.int64, device=seeds.device)
        nodes, seed_rows = relabel(seeds[:0], seeds)
        distinct, begin = nodes, 0
        pointers, sources, positions = _nothing(seeds)
        blocks: list[Block] = []
        for hop, fan_out in enumerate(fan_outs):
            first, begin = (0 if resample else begin), len(nodes)
            drawn = draw_hop(topology, nodes[first:], fan_out, of_hops, hop, replace=replace)
            nodes, local = relabel(nodes, drawn.neighbors)
            if resample:
                pointers, sources, positions = _nothing(seeds)
            most = torch.iinfo(seeds.dtype).max
            if len(sources) + len(local) > most:
                raise OverflowError(len(sources) + len(local))
            later = (drawn.offsets[1:] + len(sources)).to(seeds.dtype)
            pointers = torch.cat([pointers, later])
            sources = torch.cat([sources, local])
            positions = torch.cat([positions, drawn.positions])
            blocks.append(Block(nodes, begin, pointers, sources, positions, index))
    return NeighborSample(distinct, seed_rows, blocks[::-1], number)


def _nothing(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pointers, sources and positions of no edges."""
    return like.new_zeros(1), like[:0], like[:0]
