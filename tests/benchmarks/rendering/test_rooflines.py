"""Bounds follow from bytes, operations and data sheets, for every kernel of the layers."""

from __future__ import annotations

import torch

from benchmarks.rendering.rooflines import (
    GPUS,
    IMAGES,
    describe_bound,
    estimate_layers,
    render_convolution_rooflines,
    render_relational_rooflines,
)
from shorthaul.conv.planning.estimate import TWELVE_LAYERS
from shorthaul.relational.planning.estimate import Machine


def test_the_slower_of_two_bounds() -> None:
    machine = Machine(bytes_per_second=1e9, flops_per_second=1e10)
    assert describe_bound(10**6, 10**6, machine) == "memory, 1.0 ms"
    assert describe_bound(10**6, 10**8, machine) == "operations, 10.0 ms"


def test_every_kernel_has_a_line_and_a_bound_on_every_gpu() -> None:
    rows = render_relational_rooflines().splitlines()[2:]
    kernels = [each for costs in estimate_layers().values() for each in costs.kernels]
    assert len(rows) == len(kernels) > 10
    assert {each.direction for each in kernels} == {"forward", "backward"}
    for row in rows:
        assert row.count("memory, ") + row.count("operations, ") == len(GPUS), row


def test_convolutions_count_each_array_once() -> None:
    rows = render_convolution_rooflines().splitlines()[2:]
    assert len(rows) == 2 * len(TWELVE_LAYERS)
    # conv12 in float16: 512 x 7 x 7 -> 512 x 5 x 5 by 3 x 3, worked out by hand.
    numbers = IMAGES * 512 * (49 + 25) + 512 * 512 * 9
    flops = 2 * IMAGES * 25 * 512 * 512 * 9
    assert f"| {flops / 1e6:,.1f} | {flops / (2 * numbers):.2f} |" in rows[-1]
    assert GPUS[0].machine(torch.float16).flops_per_second == 312e12
    assert GPUS[0].machine(torch.float32).flops_per_second == 19.5e12
