"""The Triton kernels compile to machine code for the GPUs that they are meant for."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.conv.problem import DEVICE_DTYPES, ConvProblem
from shorthaul.conv.triton import kernels as triton_kernels
from shorthaul.conv.triton import launch as triton_launch
from shorthaul.conv.triton.launch import TILES, Tile
from tests.triton_programs import CUBIN_MAGIC, compile_kernel

POINTERS = (
    "image", "weight", "bias", "residual", "output", "gradient", "grad_input",
)  # fmt: skip
KERNELS = ("forward_kernel", "grad_input_kernel", "grad_weight_kernel")


def _compile(name: str, tile: Tile, capability: int, dtype: torch.dtype) -> Any:
    # Three channels of a 7x7 stem: K is 147, which fits no tile.
    problem = ConvProblem(3, 64, (1, 7, 7), stride=(1, 2, 2), padding=((0, 0), (3, 3), (3, 3)))
    kernel = getattr(triton_kernels, name)
    element = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    constants = {
        **triton_launch._constants(problem),
        "ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth,
        "MODE": 1, "IS_WIDE": False, "HAS_BIAS": True, "HAS_RESIDUAL": True, "ACTIVATION": "gelu",
    }  # fmt: skip
    types = dict.fromkeys(POINTERS, f"*{element}") | {"parts": "*fp32"}
    return compile_kernel(
        kernel, types, constants, capability, num_warps=tile.warps, num_stages=tile.stages
    )


@pytest.mark.parametrize(
    ("name", "tile", "capability", "dtype"),
    [
        ("forward_kernel", TILES[2], 80, torch.float16),
        ("forward_kernel", TILES[4], 90, torch.float32),
        ("grad_input_kernel", TILES[3], 80, torch.float16),
        ("grad_weight_kernel", TILES[3], 90, torch.bfloat16),
    ],
)
def test_compiles(name: str, tile: Tile, capability: int, dtype: torch.dtype) -> None:
    assert _compile(name, tile, capability, dtype)["cubin"][:4] == CUBIN_MAGIC


def test_the_second_pass_compiles() -> None:
    types = {"parts": "*fp32", "output": "*fp16"}
    stages = compile_kernel(triton_kernels.sum_parts_kernel, types, {"BLOCK": 1024}, 80)
    assert stages["cubin"][:4] == CUBIN_MAGIC


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
@pytest.mark.parametrize("name", KERNELS)
def test_every_offered_tile_compiles(name: str, tile: Tile, capability: int) -> None:
    for dtype in DEVICE_DTYPES:
        assert _compile(name, tile, capability, dtype)["cubin"][:4] == CUBIN_MAGIC
