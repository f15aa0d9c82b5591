"""Grids that a GPU can count, of every launch, and numbers that 32 bits cannot."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.triton import launch as conv_launch
from shorthaul.errors import GridTooLargeError
from shorthaul.graphs.sampling.device import hops as draw_launch
from shorthaul.jit.launching.launch_grid import MOST_PROGRAMS, flat_grid
from shorthaul.relational.backends.triton import backend as relational_backend
from shorthaul.relational.backends.triton import launch as relational_launch
from shorthaul.relational.topology.topology import Tiles
from shorthaul.tensors.cuda import triton_launch as gather_launch
from shorthaul.tensors.kernels.stored_rows import StoredRows
from tests.triton_programs import run_interpreted

META = torch.device("meta")
LONGEST = (2**31 - 1, 2**16 - 1, 2**16 - 1)
Launch = tuple[str, tuple[int, ...]]


class Recorder:
    """A kernel that is not run: its grids are noted."""

    def __init__(self, name: str, launches: list[Launch]) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *_, **__: self.launches.append((self.name, grid))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    found: list[Launch] = []
    for module in (conv_launch, relational_launch, gather_launch):
        for name in [each for each in vars(module) if each.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Recorder(name, found))
    return found


def _require_countable(launches: list[Launch], count: int) -> None:
    assert len(launches) == count
    for name, grid in launches:
        assert all(1 <= size <= most for size, most in zip(grid, LONGEST, strict=False)), name


def test_a_depthwise_weight_gradient_of_a_large_batch_can_be_counted(
    launches: list[Launch],
) -> None:
    """MobileNetV2's first depthwise stage with 256 images: 75,264 parts of groups."""
    problem = ConvProblem(96, 96, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), groups=96)
    image = torch.empty(256, 96, 1, 112, 112, device=META)
    conv_launch.run_grad_weight(problem, image, image)
    weight = torch.empty(problem.weight_shape, device=META)
    conv_launch.run_forward(problem, image, weight)
    conv_launch.run_grad_input(problem, image, weight, (1, 112, 112))
    _require_countable(launches, 4)
    assert launches[0] == ("grad_weight_kernel", (75_264,))


def test_many_heads_and_wide_weights_can_be_counted(launches: list[Launch]) -> None:
    lists = torch.empty(3, dtype=torch.int64, device=META)
    tiles = Tiles(lists, lists[:2], lists[:2])
    blocks = {"HEADS": 70_000, "INNER": 1, "DEPTH": 4, "WIDTH": 4, "ROWS": 4, "COLUMNS": 4}
    x = torch.empty(10, 70_000, 4, device=META)
    relational_launch.launch_product(blocks, tiles, None, None, x, x, x)
    out = torch.empty(1, 70_000, 4, 4, device=META)
    relational_launch.launch_outer(blocks, tiles, None, (None, None), x, x, out)
    relational_launch.sum_tiles(tiles, *torch.empty(2, 1, 2**27, device=META))
    _require_countable(launches, 4)


def test_gathers_of_many_rows_can_be_counted(launches: list[Launch]) -> None:
    ids = torch.empty(2**31, dtype=torch.int64, device=META)
    rows = StoredRows(torch.empty(2**31, 100, device=META), torch.float32)
    flag = gather_launch.RangeFlag(META)
    gather_launch.gather_rows(rows, ids, flag)
    gather_launch.reduce_rows(rows, ids[: 2**30], ids, "sum", flag)
    _require_countable(launches, 2)


def test_what_cannot_be_counted_is_refused() -> None:
    assert flat_grid("any", MOST_PROGRAMS) == (MOST_PROGRAMS,)
    with pytest.raises(GridTooLargeError, match="any would need 2,147,483,648 programs"):
        flat_grid("any", 2**16, 2**15)


@pytest.mark.parametrize(
    "module", [conv_launch, relational_launch, relational_backend, gather_launch, draw_launch]
)
def test_every_launch_is_counted(module: Any) -> None:
    """A launch that is not written by `flat_grid` would escape the tests above."""
    text = inspect.getsource(module)
    grids = re.findall(r"(?:_kernel|kernel\(number\))\[(.*?)\]\(", text, re.S)
    assert grids
    for grid in grids:
        assert grid.startswith("flat_grid(") or f"{grid} = flat_grid(" in text, grid


@pytest.mark.timeout(300)
def test_numbers_beyond_32_bits_are_right_in_every_kernel() -> None:
    found = run_interpreted("tests.jit.launching.beyond_int32", 0, 0)
    assert len(found) == 8
    assert [each["name"] for each in found if not each["is_right"]] == []
