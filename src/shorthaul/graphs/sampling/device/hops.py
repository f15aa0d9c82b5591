"""One hop on a device: how many neighbors each target takes, which ones, and their local ids.

Topology is read where it lies: rows of `pointers` for the targets, and the neighbors that are taken.
The host waits twice in a hop, for the number of edges and for the number of nodes, which say how
much memory comes next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from shorthaul.graphs.sampling.device.triton_draw import draw_again_kernel, draw_kernel
from shorthaul.jit.launching.launch_grid import flat_grid
from shorthaul.meter import record_launch

MOST_MEMBERS = 1024  # of a set that one program holds
MEMBERS_PER_PROGRAM = 1024
TARGETS_PER_PROGRAM = 128  # where nothing is held


@dataclass(frozen=True, eq=False)
class DeviceTopology:
    """Incoming edges as the device sees them: mapped host memory, or a copy of its own."""

    pointers: torch.Tensor  # (N + 1,)
    sources: torch.Tensor  # (E,)

    def __post_init__(self) -> None:
        assert self.pointers.dtype is self.sources.dtype


@dataclass(frozen=True, eq=False)
class DeviceHop:
    """The edges that one hop took."""

    offsets: torch.Tensor  # (T + 1,) int64
    positions: torch.Tensor  # (E,) places in the index
    neighbors: torch.Tensor  # (E,) global ids


def draw_hop(
    topology: DeviceTopology,
    targets: torch.Tensor,
    fan_out: int,
    keys: torch.Tensor,
    hop: int,
    *,
    replace: bool,
) -> DeviceHop:
    """The neighbors that `targets` take in hop `hop`; `OverflowError` where they cannot be counted."""
    begins = topology.pointers.index_select(0, targets).long()
    degrees = topology.pointers.index_select(0, targets + 1).long() - begins
    most = torch.iinfo(targets.dtype).max
    if fan_out < 0:
        counts = degrees
    elif replace:
        _require_countable(fan_out * int(torch.count_nonzero(degrees)), most)
        counts = (degrees > 0) * fan_out
    else:
        counts = degrees.clamp(max=fan_out)
    offsets = torch.zeros(len(targets) + 1, dtype=torch.int64, device=targets.device)
    torch.cumsum(counts, 0, out=offsets[1:])
    total = _require_countable(int(offsets[-1]), most)
    if fan_out < 0:
        starts = torch.repeat_interleave(begins - offsets[:-1], counts, output_size=total)
        places = starts + torch.arange(total, dtype=torch.int64, device=targets.device)
        return DeviceHop(
            offsets, places.to(targets.dtype), topology.sources.index_select(0, places)
        )
    drawn = DeviceHop(offsets, targets.new_empty(total), targets.new_empty(total))
    if total:
        rows = begins, degrees
        launch_draw(topology.sources, targets, rows, drawn, fan_out, keys, hop, replace=replace)
    return drawn


def relabel(nodes: torch.Tensor, met: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`nodes`, distinct ones, with those of `met` that are new behind them; and where each of `met` is.

    New ones are numbered in the order of their first appearance.

    >>> relabel(torch.tensor([7, 3]), torch.tensor([5, 3, 9, 5]))
    (tensor([7, 3, 5, 9]), tensor([2, 1, 3, 2]))
    """
    both = torch.cat([nodes, met])
    ordered, order = torch.sort(both, stable=True)
    begins = torch.ones(len(both), dtype=torch.bool, device=both.device)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = order[begins]  # where each node appears first, in the order of the nodes
    appearances, number_of = torch.sort(firsts)
    numbers = torch.empty_like(number_of)
    numbers[number_of] = torch.arange(len(firsts), dtype=torch.int64, device=both.device)
    places = torch.empty_like(order)
    places[order] = numbers[begins.cumsum(0) - 1]
    return both[appearances], places[len(nodes) :].to(both.dtype)


def choose_draw_block(fan_out: int, *, replace: bool) -> dict[str, int]:
    """What a kernel is compiled for: targets of a program, and members of a set that is held."""
    if replace:
        return {"BLOCK": TARGETS_PER_PROGRAM}
    members = int(triton.next_power_of_2(fan_out))
    return {"BLOCK": max(1, MEMBERS_PER_PROGRAM // members), "MEMBERS": members}


def launch_draw(
    sources: torch.Tensor,
    targets: torch.Tensor,
    rows: tuple[torch.Tensor, torch.Tensor],
    drawn: DeviceHop,
    fan_out: int,
    keys: torch.Tensor,
    hop: int,
    *,
    replace: bool,
) -> None:
    """Fill `drawn`, whose offsets are known, from the `rows` (begins and degrees) of `targets`."""
    draw_one_kernel = draw_again_kernel if replace else draw_kernel
    name = "draw_again_kernel" if replace else "draw_kernel"
    block = choose_draw_block(fan_out, replace=replace)
    grid = flat_grid(name, triton.cdiv(len(targets), block["BLOCK"]))
    draw_one_kernel[grid](
        sources,
        *rows,
        drawn.offsets,
        targets,
        keys,
        drawn.positions,
        drawn.neighbors,
        len(targets),
        fan_out,
        hop,
        **block,
    )
    record_launch(name)


def _require_countable(edges: int, most: int) -> int:
    if edges > most:
        raise OverflowError(edges)
    return edges
