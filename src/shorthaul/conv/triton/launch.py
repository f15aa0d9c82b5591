"""Launching the Triton kernels on tensors: tiles, packed weights, grids.

The functions are those of the other backends, so that `choose_backend` can choose among modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.layout.function import sum_dtype
from shorthaul.conv.problem import DEVICE_DTYPES, NO_PADDING, PADDING_MODES, ConvProblem, Triple
from shorthaul.conv.problem.geometry import as_triple
from shorthaul.conv.triton.kernels import (
    forward_kernel,
    grad_input_kernel,
    grad_weight_kernel,
    sum_parts_kernel,
)
from shorthaul.jit.launching.device_guard import computing_on
from shorthaul.jit.launching.launch_grid import flat_grid
from shorthaul.jit.launching.product_precision import choose_product_precision

# Pixels that one program of the weight gradient's first pass sums up: at most so many, and fewer where
# multiprocessors would have nothing to do, but not so few that writing the parts takes as long.
MOST_PART_PIXELS, LEAST_PART_PIXELS = 4096, 256
INT32_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Tile:
    """The GEMM tile of one program: rows, columns and depth, with its warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def name(self) -> str:
        """What a choice among tiles is remembered as."""
        return (
            f"{self.rows} x {self.columns} x {self.depth}, {self.warps} warps, {self.stages} stages"
        )


TILES = (
    Tile(128, 128, 32, warps=8, stages=3),
    Tile(128, 64, 32, warps=8, stages=3),
    Tile(64, 64, 32, warps=4, stages=3),
    Tile(64, 32, 32, warps=4, stages=2),
    Tile(128, 16, 32, warps=8, stages=2),
)


def find_tile_named(name: str) -> Tile | None:
    """The tile of that name; `None` where an edition of the kernels has it no more."""
    return next((each for each in TILES if each.name == name), None)


# Exact float32 products are added up in registers, which larger tiles would spill.
MOST_EXACT_PRODUCTS = 64 * 64


def list_tiles(rows: int, columns: int, *, has_tensor_cores: bool = True) -> list[Tile]:
    """The tiles that columns and rows fill at least half, the largest first."""
    found = [
        tile
        for tile in TILES
        if (has_tensor_cores or tile.rows * tile.columns <= MOST_EXACT_PRODUCTS)
        and tile.columns <= max(16, 2 * columns - 1)
        and tile.rows <= max(64, 2 * rows)
    ]
    return found or [TILES[-1]]


def choose_tile(
    rows: int,
    columns: int,
    *,
    has_tensor_cores: bool = True,
    groups: int = 1,
    multiprocessors: int = 0,
) -> Tile:
    """The largest tile that gives each multiprocessor a program; else the one that makes the most."""
    tiles = list_tiles(rows, columns, has_tensor_cores=has_tensor_cores)

    def programs(tile: Tile) -> int:
        return int(triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)) * groups

    enough = (tile for tile in tiles if programs(tile) >= multiprocessors)
    return next(enough, max(tiles, key=programs))


def choose_part_pixels(pixels: int, programs: int, multiprocessors: int) -> int:
    """How many pixels a part of a weight's gradient has, where `programs` work on each part.

    A power of two, so that tiles fit it; the sums depend on it, and so on the number of
    multiprocessors, but not on what else the device does.
    """
    size = min(MOST_PART_PIXELS, int(triton.next_power_of_2(pixels)))
    while size > LEAST_PART_PIXELS and triton.cdiv(pixels, size) * programs < multiprocessors:
        size //= 2
    return size


def count_multiprocessors(device: torch.device) -> int:
    """How many programs a device runs at once at least; 0 for the CPU, where kernels are interpreted."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _on_its_device(launch: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A launch on the device of its second argument, the first after the problem."""

    @functools.wraps(launch)
    def guarded(problem: ConvProblem, first: Tensor, *rest: Any, **options: Any) -> Tensor:
        with computing_on(first.device):
            return launch(problem, first, *rest, **options)

    return guarded


def choose_precision(problem: ConvProblem) -> str:
    """TF32 rounds inputs to ten bits: only where `exact=False` or PyTorch's setting allows it."""
    return choose_product_precision(problem.dtype) if problem.exact else "tf32"


def uses_tensor_cores(problem: ConvProblem) -> bool:
    """Whether products are taken by tensor cores: not those of float32, unless TF32 is allowed."""
    return problem.dtype is not torch.float32 or choose_precision(problem) == "tf32"


def _choose_tile(problem: ConvProblem, rows: int, columns: int, device: torch.device) -> Tile:
    return choose_tile(
        rows,
        columns,
        has_tensor_cores=uses_tensor_cores(problem),
        groups=problem.groups,
        multiprocessors=count_multiprocessors(device),
    )


def needs_wide_rows(rows: int, tile: Tile) -> bool:
    """Whether the numbers of so many pixels, and of those that fill their last tile, exceed 32 bits."""
    return rows + tile.rows + tile.depth > INT32_LIMIT


def supports(problem: ConvProblem) -> str | None:
    """Why these kernels do not compute `problem`; `None` if they do."""
    return None if problem.dtype in DEVICE_DTYPES else f"{problem.dtype} has no Triton kernel"


@_on_its_device
def run_forward(
    problem: ConvProblem,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    out: Tensor | None = None,
    is_trained: bool = False,  # noqa: ARG001 (nothing is packed)
    tile: Tile | None = None,
) -> Tensor:
    """activation(convolution + bias + residual) of 5-D tensors in any strides."""
    sizes = as_triple(input.shape[2:])
    out_sizes = problem.output_sizes(sizes)
    wanted, input = out, _with_channels_last(input)
    out = _empty(input, (len(input), problem.out_channels, *out_sizes), problem.dtype, wanted)
    if residual is not None and residual.stride() != out.stride():
        residual = torch.empty_like(out).copy_(residual)
    rows = len(input) * out_sizes[0] * out_sizes[1] * out_sizes[2]
    outputs = problem.out_channels_per_group
    tile = tile or _choose_tile(problem, rows, outputs, input.device)
    tiles = triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.columns)
    forward_kernel[flat_grid("forward_kernel", *tiles, problem.groups)](
        input,
        pack_weight(problem, weight),
        out if bias is None else bias,
        out if residual is None else residual,
        out,
        rows,
        *tiles,
        *sizes,
        *out_sizes,
        *input.stride(),
        *out.stride(),
        **_constants(problem),
        MODE=PADDING_MODES.index(problem.padding_mode),
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        ACTIVATION=problem.activation or "",
        **_tile_constants(tile),
        IS_WIDE=needs_wide_rows(rows, tile),
    )
    return _as_asked(problem, out, wanted)


def run_grad_input(
    problem: ConvProblem,
    grad_output: Tensor,
    weight: Tensor,
    input_sizes: Triple,
    *,
    is_trained: bool = False,  # noqa: ARG001 (nothing is packed)
    tile: Tile | None = None,
) -> Tensor:
    """The gradient of the input.

    Padding that repeats values is done in two steps: the gradient of the padded image, whose
    padding then returns to where it came from, before anything is rounded to 16 bits.
    """
    if problem.padding_mode != "zeros" and problem.padding != NO_PADDING:
        unpadded, sizes = problem.without_padding(problem.dtype), problem.padded_sizes(input_sizes)
        whole = _grad_input(unpadded, grad_output, weight, sizes, tile, sum_dtype(problem.dtype))
        return aten.unpad(problem, whole, input_sizes).to(problem.dtype)
    return _grad_input(problem, grad_output, weight, input_sizes, tile, problem.dtype)


@_on_its_device
def _grad_input(
    problem: ConvProblem,
    grad_output: Tensor,
    weight: Tensor,
    input_sizes: Triple,
    tile: Tile | None,
    dtype: torch.dtype,
) -> Tensor:
    shape = (len(grad_output), problem.in_channels, *input_sizes)
    grad_output = _with_channels_last(grad_output)
    result = _empty(grad_output, shape, dtype)
    rows = len(grad_output) * input_sizes[0] * input_sizes[1] * input_sizes[2]
    channels = problem.in_channels_per_group
    tile = tile or _choose_tile(problem, rows, channels, grad_output.device)
    tiles = triton.cdiv(rows, tile.rows), triton.cdiv(channels, tile.columns)
    grad_input_kernel[flat_grid("grad_input_kernel", *tiles, problem.groups)](
        grad_output,
        pack_weight_for_gradient(problem, weight),
        result,
        rows,
        *tiles,
        *input_sizes,
        *as_triple(grad_output.shape[2:]),
        *result.stride(),
        *grad_output.stride(),
        **_constants(problem),
        **_tile_constants(tile),
        IS_WIDE=needs_wide_rows(rows, tile),
    )
    return _as_asked(problem, result)


@_on_its_device
def run_grad_weight(
    problem: ConvProblem, grad_output: Tensor, input: Tensor, *, tile: Tile | None = None
) -> Tensor:
    """The gradient of the weight: parts of the pixels summed apart, then added in order."""
    grad_output, input = _with_channels_last(grad_output), _with_channels_last(input)
    groups, outputs = problem.groups, problem.out_channels_per_group
    out_sizes = as_triple(grad_output.shape[2:])
    pixels = len(input) * out_sizes[0] * out_sizes[1] * out_sizes[2]
    # The tile is chosen by what a tile multiplies: parts see to it that there is work for all.
    fits = {"has_tensor_cores": uses_tensor_cores(problem)}
    tile = tile or choose_tile(problem.window_values, outputs, **fits)
    tiles = triton.cdiv(problem.window_values, tile.rows), triton.cdiv(outputs, tile.columns)
    multiprocessors = count_multiprocessors(input.device)
    per_part = choose_part_pixels(pixels, tiles[0] * tiles[1] * groups, multiprocessors)
    count = triton.cdiv(pixels, per_part)
    parts = grad_output.new_empty(
        (count, groups, problem.window_values, outputs), dtype=torch.float32
    )
    grad_weight_kernel[flat_grid("grad_weight_kernel", *tiles, count * groups)](
        grad_output,
        input,
        parts,
        pixels,
        *tiles,
        *as_triple(input.shape[2:]),
        *out_sizes,
        groups,
        per_part,
        *input.stride(),
        *grad_output.stride(),
        **_constants(problem),
        MODE=PADDING_MODES.index(problem.padding_mode),
        **_tile_constants(tile),
        IS_WIDE=needs_wide_rows(pixels + per_part, tile),
    )
    packed = grad_output.new_empty(parts.shape[1:], dtype=problem.dtype)
    block = 1024
    sum_parts_kernel[flat_grid("sum_parts_kernel", triton.cdiv(packed.numel(), block))](
        parts, packed, count, packed.numel(), BLOCK=block
    )
    return unpack_weight(problem, packed)


def pack_weight(problem: ConvProblem, weight: Tensor) -> Tensor:
    """(groups, k in the order kw, kd, kh, channel; outputs): the B of the forward GEMM."""
    split = weight.reshape(problem.groups, -1, *problem.weight_shape[1:])  # g, o, c, kd, kh, kw
    return split.permute(0, 5, 3, 4, 2, 1).contiguous()


def pack_weight_for_gradient(problem: ConvProblem, weight: Tensor) -> Tensor:
    """(groups, k in the order kw, kd, kh, output; channels): the B of the gradient's GEMM."""
    split = weight.reshape(problem.groups, -1, *problem.weight_shape[1:])
    return split.permute(0, 5, 3, 4, 1, 2).contiguous()


def unpack_weight(problem: ConvProblem, packed: Tensor) -> Tensor:
    """The inverse of `pack_weight`."""
    depth, height, width = problem.kernel
    channels = problem.in_channels_per_group
    split = packed.view(problem.groups, width, depth, height, channels, -1)
    return split.permute(0, 5, 4, 2, 3, 1).reshape(problem.weight_shape)


def _constants(problem: ConvProblem) -> dict[str, Any]:
    names = ("KD", "KH", "KW", "SD", "SH", "SW", "DD", "DH", "DW", "PD", "PH", "PW")
    lows = tuple(low for low, _ in problem.padding)
    values = (*problem.kernel, *problem.stride, *problem.dilation, *lows)
    return {
        "CHANNELS": problem.in_channels_per_group,
        "OUTPUTS": problem.out_channels_per_group,
        **dict(zip(names, values, strict=True)),
        "PRECISION": choose_precision(problem),
    }


def _tile_constants(tile: Tile) -> dict[str, int]:
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _with_channels_last(image: Tensor) -> Tensor:
    """The image with its channels side by side, as a tile reads them: otherwise it is transposed once."""
    return image.contiguous(memory_format=torch.channels_last_3d)


def _empty(
    like: Tensor, shape: tuple[int, ...], dtype: torch.dtype, wanted: Tensor | None = None
) -> Tensor:
    """Memory for a result with channels last: what is wanted, if it lies so."""
    form = torch.channels_last_3d
    if wanted is not None and wanted.is_contiguous(memory_format=form):
        return wanted
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=form)


def _as_asked(problem: ConvProblem, made: Tensor, wanted: Tensor | None = None) -> Tensor:
    """A result in the problem's layout, or in the memory that was given for it."""
    if wanted is None:
        return made.contiguous(memory_format=aten.memory_format(problem))
    return wanted if made is wanted else wanted.copy_(made)
