"""Launching the products: blocks by the matrix's sizes, grids by the graph's tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl

from shorthaul.jit.launching.launch_grid import flat_grid
from shorthaul.jit.launching.product_precision import choose_product_precision
from shorthaul.relational.backends.run import WIDE
from shorthaul.relational.backends.triton.products import (
    outer_kernel,
    product_kernel,
    sum_tiles_kernel,
)
from shorthaul.relational.ir.step import Step
from shorthaul.relational.topology.topology import Tiles

ROWS_PER_TILE = 64
ROWS_PER_OUTER_TILE = 1024
STAGES = 3  # of the loop over a product's depth: loads that are under way together
EXACT_STAGES = 2  # with three, exact products of 64 x 64 do not fit the registers
DOT_WIDTH = 16  # the smallest side that `tl.dot` takes
SUM_ELEMENTS = 4096  # elements that one program multiplies before it adds them up
REALS = {torch.float32: tl.float32, torch.float64: tl.float64}


@dataclass(frozen=True)
class Blocks:
    """What one program computes: rows by columns, with sums in pieces of `block`."""

    rows: int
    columns: int
    block: int
    uses_dot: bool

    @property
    def constants(self) -> dict[str, Any]:
        """As the kernels' constants."""
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "BLOCK": self.block,
            "USES_DOT": self.uses_dot,
        }


def choose_product_blocks(depth: int, width: int, dtype: torch.dtype) -> Blocks:
    """For a tile of rows by a matrix of `depth` by `width`."""
    columns = min(64, round_up(width))
    if dtype is not torch.float64 and min(depth, width) >= DOT_WIDTH:
        return Blocks(ROWS_PER_TILE, columns, min(32, round_up(depth)), True)
    columns = min(16, columns)
    block = min(round_up(depth), max(1, SUM_ELEMENTS // (ROWS_PER_TILE * columns)))
    return Blocks(ROWS_PER_TILE, columns, block, False)


def choose_outer_blocks(depth: int, width: int, dtype: torch.dtype) -> Blocks:
    """For a gradient of `depth` by `width`, summed over rows."""
    rows, columns = min(64, round_up(depth)), min(64, round_up(width))
    if dtype is not torch.float64 and min(depth, width) >= DOT_WIDTH:
        return Blocks(rows, columns, 32, True)
    rows, columns = min(16, rows), min(16, columns)
    return Blocks(rows, columns, max(16, min(64, SUM_ELEMENTS // (rows * columns))), False)


def round_up(size: int) -> int:
    """The next power of two, which every dimension of a Triton tensor must be."""
    return int(triton.next_power_of_2(max(1, size)))


def product_constants(step: Step, x: Step, weight: Step, dtype: torch.dtype) -> dict[str, Any]:
    """What `product_kernel` is compiled for, apart from which index lists there are."""
    heads = weight.shape[0] if len(weight.shape) == 3 else 1
    depth, width = x.shape[-1], step.shape[-1]
    return {
        "TURNED": bool(step["transposed"]),
        "HEADS": heads,
        "INNER": prod(x.shape[:-1]) // max(1, heads),
        "DEPTH": depth,
        "WIDTH": width,
        "REAL": REALS[WIDE.get(dtype, dtype)],
        **choose_product_blocks(depth, width, dtype).constants,
    }


def outer_constants(step: Step, x: Step, y: Step, dtype: torch.dtype) -> dict[str, Any]:
    """What `outer_kernel` is compiled for, apart from which index lists there are."""
    heads = step.shape[0] if step["heads"] else 1
    depth, width = x.shape[-1], y.shape[-1]
    return {
        "HEADS": heads,
        "INNER": prod(x.shape[:-1]) // max(1, heads),
        "DEPTH": depth,
        "WIDTH": width,
        "REAL": REALS[WIDE.get(dtype, dtype)],
        **choose_outer_blocks(depth, width, dtype).constants,
    }


def launch_product(
    constants: dict[str, Any],
    tiles: Tiles,
    order: torch.Tensor | None,
    gather: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """out[row] = x[gather[row]] W[type of row]"""
    if out.numel() == 0:
        return
    count = len(tiles.owners)
    columns = triton.cdiv(constants["WIDTH"], constants["COLUMNS"])
    lanes = constants["HEADS"] * constants["INNER"]
    precision = choose_product_precision(x.dtype)
    is_exact = x.dtype is torch.float32 and precision == "ieee"
    product_kernel[flat_grid("product_kernel", count, columns, lanes)](
        tiles.limits,
        tiles.owners,
        tiles.limits if order is None else order,
        tiles.limits if gather is None else gather,
        x,
        weight,
        out,
        count,
        columns,
        HAS_ORDER=order is not None,
        HAS_GATHER=gather is not None,
        PRECISION=precision,
        num_stages=EXACT_STAGES if is_exact else STAGES,
        **constants,
    )


def launch_outer(
    constants: dict[str, Any],
    tiles: Tiles,
    order: torch.Tensor | None,
    gathers: tuple[torch.Tensor | None, torch.Tensor | None],
    x: torch.Tensor,
    y: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """out[type] = the sum of x^T y over the rows of the type"""
    if out.numel() == 0:
        return
    count = len(tiles.owners)
    wide = WIDE.get(out.dtype, out.dtype)
    partial = torch.empty((count, *out.shape[1:]), dtype=wide, device=out.device)
    blocks = triton.cdiv(constants["DEPTH"], constants["ROWS"]) * triton.cdiv(
        constants["WIDTH"], constants["COLUMNS"]
    )
    if count:
        outer_kernel[flat_grid("outer_kernel", count, blocks, constants["HEADS"])](
            tiles.limits,
            tiles.limits if order is None else order,
            *(tiles.limits if each is None else each for each in gathers),
            x,
            y,
            partial,
            count,
            HAS_ORDER=order is not None,
            HAS_X=gathers[0] is not None,
            HAS_Y=gathers[1] is not None,
            PRECISION=choose_product_precision(x.dtype),
            num_stages=EXACT_STAGES,
            **constants,
        )
    sum_tiles(tiles, partial, out)


def sum_tiles(tiles: Tiles, partial: torch.Tensor, out: torch.Tensor) -> None:
    """out[type] = the sum of its tiles' parts, in their order; 0 for a type without tiles."""
    size = prod(out.shape[1:])
    if size == 0 or len(out) == 0:
        return
    block = min(1024, round_up(size))
    grid = flat_grid("sum_tiles_kernel", len(out), triton.cdiv(size, block))
    sum_tiles_kernel[grid](
        tiles.first, partial, out, len(out), SIZE=size, REAL=REALS[partial.dtype], BLOCK=block
    )
