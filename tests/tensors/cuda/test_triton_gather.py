"""The gather kernels compile to machine code for the GPUs they are meant for, with wide loads."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.tensors.cuda import triton_gather
from shorthaul.tensors.cuda.triton_launch import (
    MOST_LANES,
    RowVectors,
    choose_vectors,
    gather_constants,
    reduce_constants,
    rows_per_program,
)
from shorthaul.tensors.kernels.plain_rows import REDUCTIONS, Reduction
from tests.triton_programs import CUBIN_MAGIC, compile_kernel

ELEMENTS = {
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
}  # fmt: skip
TYPES = {
    "scales": "*fp32", "slots": "*i32", "ids": "*i64", "order": "*i64", "flag": "*i64",
    "pointers": "*i64", "weights": "*fp32", "COUNT": "i64", "ROWS": "i64", "STRIDE": "i64",
}  # fmt: skip
WIDTHS = tuple(2**power for power in range(7))  # in vectors: one number of lanes each


def _vectors(vector_bytes: int, width: int, word: torch.dtype | None = None) -> RowVectors:
    """Rows of `width` vectors that begin anywhere in a line."""
    row_bytes = vector_bytes * width
    stride_bytes = row_bytes + vector_bytes
    return choose_vectors(
        row_bytes=row_bytes, stride_bytes=stride_bytes, address=vector_bytes, others=0, word=word
    )


def compile_gather(
    vectors: RowVectors, capability: int, output: torch.dtype | None = None, **has: bool
) -> dict[str, Any]:
    word = f"*{ELEMENTS[vectors.word]}"
    types = {**TYPES, "table": word, "cache": word}
    types["output"] = word if output is None else f"*{ELEMENTS[output]}"
    constants = gather_constants(vectors, rows_per_program(vectors)) | {
        name: has.get(name, False) for name in ("HAS_ORDER", "HAS_SCALES", "HAS_CACHE")
    }
    return compile_kernel(triton_gather.gather_kernel, types, constants, capability)


def compile_reduce(
    vectors: RowVectors, capability: int, op: Reduction, output: torch.dtype, **has: bool
) -> dict[str, Any]:
    word = f"*{ELEMENTS[vectors.word]}"
    types = {**TYPES, "table": word, "cache": word, "output": f"*{ELEMENTS[output]}"}
    constants = reduce_constants(vectors, op, output) | {
        name: has.get(name, False) for name in ("HAS_WEIGHTS", "HAS_SCALES", "HAS_CACHE")
    }
    return compile_kernel(triton_gather.reduce_kernel, types, constants, capability)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("has_cache", [False, True])
def test_wide_rows_are_read_16_bytes_at_a_time_though_lanes_are_turned(
    capability: int, has_cache: bool
) -> None:
    vectors = _vectors(16, 32)
    assert vectors.is_shifted
    stages = compile_gather(vectors, capability, HAS_CACHE=has_cache, HAS_ORDER=True)
    assert stages["cubin"][:4] == CUBIN_MAGIC
    assert "ld.global.v2.b64" in stages["ptx"]
    assert "st.global.v2.b64" in stages["ptx"]


@pytest.mark.parametrize(
    ("word", "has_scales"), [(torch.float16, False), (torch.bfloat16, False), (torch.int8, True)]
)
def test_rows_are_widened_in_the_kernel(word: torch.dtype, has_scales: bool) -> None:
    stages = compile_gather(_vectors(16, 8, word), 80, torch.float32, HAS_SCALES=has_scales)
    assert stages["cubin"][:4] == CUBIN_MAGIC
    assert "ld.global.v4.b32" in stages["ptx"], "16 bytes of narrow values at a time"


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_compile(op: Reduction) -> None:
    vectors = _vectors(16, 32, torch.int8)
    stages = compile_reduce(
        vectors, 90, op, torch.float32, HAS_WEIGHTS=True, HAS_SCALES=True, HAS_CACHE=True
    )
    assert stages["cubin"][:4] == CUBIN_MAGIC


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("vector_bytes", [1, 2, 4, 8, 16])
def test_every_offered_gather_compiles(vector_bytes: int, capability: int) -> None:
    assert max(WIDTHS) == MOST_LANES
    for width in (*WIDTHS, 1000):
        vectors = _vectors(vector_bytes, width)
        for has_cache in (False, True):
            for has_order in (False, True):
                stages = compile_gather(
                    vectors, capability, HAS_CACHE=has_cache, HAS_ORDER=has_order
                )
                assert stages["cubin"][:4] == CUBIN_MAGIC


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("word", [torch.float16, torch.bfloat16, torch.int8])
def test_every_offered_widening_compiles(word: torch.dtype, capability: int) -> None:
    for vector_bytes in (1, 2, 4, 8, 16):
        if vector_bytes >= word.itemsize:
            for width in (1, 4, 32, 64):
                stages = compile_gather(
                    _vectors(vector_bytes, width, word),
                    capability,
                    torch.float32,
                    HAS_SCALES=word is torch.int8,
                    HAS_CACHE=True,
                    HAS_ORDER=True,
                )
                assert stages["cubin"][:4] == CUBIN_MAGIC


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("word", "output"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int8, torch.float32),
    ],
)
def test_reductions_of_every_dtype_compile(
    word: torch.dtype, output: torch.dtype, capability: int
) -> None:
    for op in REDUCTIONS:
        for vector_bytes, width in ((word.itemsize, 1), (word.itemsize, 64), (16, 8), (16, 64)):
            stages = compile_reduce(
                _vectors(vector_bytes, width, word),
                capability,
                op,
                output,
                HAS_SCALES=word is torch.int8,
                HAS_CACHE=True,
                HAS_WEIGHTS=True,
            )
            assert stages["cubin"][:4] == CUBIN_MAGIC
