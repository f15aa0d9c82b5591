"""Every Triton kernel on tensors whose elements exceed 32 bits of counting, in Triton's interpreter.

Their memory is promised by the system and given page by page, so that only what is touched takes room; of
a launch, the last programs run. Prints a line of JSON for each kernel: its name, and whether it is right.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import math
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from triton.runtime import interpreter

from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.triton import launch as conv_launch
from shorthaul.graphs.sampling.device.hops import DeviceHop, launch_draw
from shorthaul.graphs.sampling.plain import RandomStream, draw
from shorthaul.relational.backends.triton import launch as relational_launch
from shorthaul.relational.topology.topology import Tiles
from shorthaul.tensors.cuda.triton_launch import RangeFlag, gather_rows, reduce_rows
from shorthaul.tensors.kernels.stored_rows import StoredRows

CPU = torch.device("cpu")
LIMIT = 2**31
NO_RESERVE = 0x4000  # of mmap, on Linux
LAST_PROGRAMS = 2
HEIGHT, WIDTH = 2**16 + 1, 2**15 + 1  # more pixels than 32 bits count


def promised(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until they are written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=flags)
    content = (ctypes.c_char * len(pages)).from_buffer(pages)
    return torch.frombuffer(content, dtype=dtype).view(*shape)


def gathers() -> bool:
    rows, width = LIMIT // 8 + 5, 8
    table = promised((rows, width), torch.float32)
    table[-2:] = torch.randn(2, width)
    stored, ids = StoredRows(table, torch.float32), torch.tensor([-1, rows - 2, 0])
    is_right = torch.equal(gather_rows(stored, ids, RangeFlag(CPU)), table[ids])
    many, out = promised((rows,), torch.int64), promised((rows, width), torch.float32)
    many[-1] = rows - 1
    gather_rows(stored, many, RangeFlag(CPU), out=out)
    return is_right and torch.equal(out[-2:], table[many[-2:]]) and bool(table[-1].any())


def reduces() -> bool:
    table = promised((LIMIT // 8 + 5, 8), torch.float32)
    table[-2:] = torch.randn(2, 8)
    rows, ids = StoredRows(table, torch.float32), torch.tensor([-1, -2])
    got = reduce_rows(rows, torch.tensor([0, 2]), ids, "sum", RangeFlag(CPU))
    return torch.allclose(got[0], table[-2:].sum(0))


def draws() -> bool:
    table, keys, is_right = promised((LIMIT + 100,), torch.int64), torch.tensor([77]), True
    table[-100:] = torch.arange(1, 101)
    for replace in (False, True):
        positions, neighbors = (promised((LIMIT + 20,), torch.int64) for _ in range(2))
        drawn = DeviceHop(torch.tensor([LIMIT + 9, LIMIT + 14]), positions, neighbors)
        row = torch.tensor([LIMIT]), torch.tensor([100])
        launch_draw(table, torch.tensor([3]), row, drawn, 5, keys, 0, replace=replace)
        wanted = draw(RandomStream(77, 3), 100, 5, replace=replace)
        found = slice(LIMIT + 9, LIMIT + 14)
        is_right &= positions[found].tolist() == [LIMIT + each for each in wanted]
        is_right &= neighbors[found].tolist() == [1 + each for each in wanted]
    return is_right


def multiplies() -> bool:
    rows, depth, width = LIMIT // 16 + 70, 16, 16
    x, out = promised((rows, depth), torch.float32), promised((rows, width), torch.float32)
    x[-3:] = torch.randn(3, depth)
    w = torch.randn(1, depth, width)
    constants = {
        "TURNED": False,
        "HEADS": 1,
        "INNER": 1,
        "DEPTH": depth,
        "WIDTH": width,
        "REAL": relational_launch.REALS[torch.float32],
        **relational_launch.choose_product_blocks(depth, width, torch.float32).constants,
    }
    count = -(-rows // relational_launch.ROWS_PER_TILE)
    limits = torch.arange(count + 1) * relational_launch.ROWS_PER_TILE
    limits[-1] = rows
    tiles = Tiles(limits, torch.zeros(count, dtype=torch.int64), torch.tensor([0, count]))
    relational_launch.launch_product(constants, tiles, None, None, x, w, out)
    return torch.allclose(out[-3:], x[-3:] @ w[0], rtol=1e-4, atol=1e-5)


def sums_outer_products() -> bool:
    rows, depth, width = LIMIT // 16 + 70, 16, 16
    x, y = promised((rows, depth), torch.float32), torch.randn(4, width)
    x[-4:] = torch.randn(4, depth)
    constants = {
        "HEADS": 1,
        "INNER": 1,
        "DEPTH": depth,
        "WIDTH": width,
        "REAL": relational_launch.REALS[torch.float32],
        **relational_launch.choose_outer_blocks(depth, width, torch.float32).constants,
    }
    tiles = Tiles(torch.tensor([0, 4]), torch.tensor([0]), torch.tensor([0, 1]))
    from_x, out = torch.arange(rows - 4, rows), torch.empty(1, depth, width)
    relational_launch.launch_outer(constants, tiles, None, (from_x, None), x, y, out)
    return torch.allclose(out[0], x[-4:].t() @ y, rtol=1e-4, atol=1e-5)


def _convolution() -> tuple[ConvProblem, torch.Tensor, torch.Tensor]:
    problem = ConvProblem(
        1, 1, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), dtype=torch.float16, layout="contiguous"
    )
    image = promised((1, 1, 1, HEIGHT, WIDTH), torch.float16)
    image[..., -4:, -200:] = torch.randn(4, 200)
    return problem, image, torch.randn(1, 1, 1, 3, 3, dtype=torch.float16)


def convolves() -> bool:
    problem, image, weight = _convolution()
    out = promised(image.shape, torch.float16)
    conv_launch.run_forward(problem, image, weight, out=out)
    wanted = F.conv2d(image[0, ..., -4:, -200:].float(), weight[0].float(), padding=1)
    return torch.allclose(
        out[0, 0, 0, -1, -60:].float(), wanted[0, 0, -1, -60:], rtol=1e-2, atol=1e-2
    )


def differentiates_by_the_image() -> bool:
    problem, gradient, weight = _convolution()
    torch.empty = lambda shape, **options: promised(shape, options["dtype"])  # type: ignore[assignment]
    got = conv_launch.run_grad_input(problem, gradient, weight, (1, HEIGHT, WIDTH))
    wanted = F.conv_transpose2d(gradient[0, ..., -4:, -200:].float(), weight[0].float(), padding=1)
    return torch.allclose(
        got[0, 0, 0, -1, -60:].float(), wanted[0, 0, -1, -60:], rtol=1e-2, atol=1e-2
    )


def differentiates_by_the_weight() -> bool:
    problem, image, _ = _convolution()
    gradient = promised(image.shape, torch.float16)
    gradient[..., -1, -60:] = torch.randn(60)
    conv_launch.MOST_PART_PIXELS = 2**16  # fewer parts to add up
    torch.Tensor.new_empty = torch.Tensor.new_zeros  # type: ignore[method-assign,assignment]
    got = conv_launch.run_grad_weight(
        problem, gradient, image, tile=conv_launch.Tile(16, 16, 4096, warps=4, stages=1)
    )
    part, above = gradient[0, ..., -4:, -200:].float(), image[0, ..., -4:, -200:].float()
    wanted = F.conv2d(above, part, padding=1)  # both end in the same corner
    return torch.allclose(got[0].float(), wanted[0], rtol=2e-2, atol=2e-1)


def _last(*arguments: int) -> Any:
    """`range`, of which a launch, but no loop of a kernel, has the last few where there are many."""
    whole = builtins.range(*arguments)
    is_launch = sys._getframe(1).f_code.co_name == "__call__"
    return whole[-LAST_PROGRAMS:] if is_launch and len(whole) > 1000 else whole


CHECKS: tuple[Callable[[], bool], ...] = (
    gathers,
    reduces,
    draws,
    multiplies,
    sums_outer_products,
    convolves,
    differentiates_by_the_image,
    differentiates_by_the_weight,
)

if __name__ == "__main__":
    interpreter.range = _last  # type: ignore[attr-defined]
    interpreter.GridExecutor._restore_args_dev = lambda *_: None  # the tensors are the host's own
    for check in CHECKS:
        torch.manual_seed(0)
        print(json.dumps({"name": check.__name__, "is_right": check()}), flush=True)
