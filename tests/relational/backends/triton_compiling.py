"""Machine code of a plan's Triton kernels, made without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from shorthaul.relational.backends.run import WIDE
from shorthaul.relational.backends.triton import products as triton_products
from shorthaul.relational.backends.triton.backend import (
    BUCKETS,
    OPTIONS,
    Bucket,
    TritonPlan,
    fine_rows,
)
from shorthaul.relational.lowering.kernels import OuterSum, Product, RowLoop
from tests.triton_programs import compile_kernel

_ELEMENTS = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
_INDEX_LISTS = {
    "limits", "owners", "order", "gather", "gather_x", "gather_y", "first", "bucket", "pointers",
    "members",
}  # fmt: skip
_VALUES = {"x", "y", "w", "out"}
EXACT = {"PRECISION": "ieee"}


def compile_work(
    plan: TritonPlan, number: int, capability: int, bucket: Bucket = BUCKETS[0]
) -> bytes:
    """The cubin of the kernel at this place of the plan."""
    work = plan.works[number]
    options: dict[str, Any] = {}
    if isinstance(work, RowLoop):
        kernel, loop = plan.kernel(number), plan.loops[number]
        options |= OPTIONS
        constants: dict[str, Any] = {"ROWS": 16}
        if loop.has_finer:
            constants = {"FINE": fine_rows(bucket, loop), "HAS_MEMBERS": True}
            options["num_warps"] = bucket.warps
    elif isinstance(work, Product):
        kernel = triton_products.product_kernel
        constants = {"HAS_ORDER": True, "HAS_GATHER": work.x.way is not None, **EXACT}
        constants |= plan.constants[number]
    else:
        assert isinstance(work, OuterSum)
        kernel = triton_products.outer_kernel
        constants = {"HAS_ORDER": True, "HAS_X": True, "HAS_Y": True, **EXACT}
        constants |= plan.constants[number]
    made = compile_kernel(kernel, _types(kernel, plan), constants, capability, **options)
    cubin: bytes = made["cubin"]
    return cubin


def compiled_works(plan: TritonPlan) -> Iterator[int]:
    """The places of the kernels that Triton compiles."""
    for number, work in enumerate(plan.works):
        if isinstance(work, RowLoop | Product | OuterSum):
            yield number


def _types(kernel: Any, plan: TritonPlan) -> dict[str, str]:
    found = {}
    for name in kernel.arg_names:
        if name in _INDEX_LISTS or name.startswith("way_"):
            found[name] = f"*{_ELEMENTS[plan.index_dtype]}"
        elif name == "partial":
            found[name] = f"*{_ELEMENTS[WIDE.get(plan.dtype, plan.dtype)]}"
        elif name in _VALUES or name.startswith(("in_", "out_")):
            found[name] = f"*{_ELEMENTS[plan.dtype]}"
    return found
