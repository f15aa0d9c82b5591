"""Products in Triton's interpreter, at sizes that fill no block."""

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.relational.backends.triton import products as triton_products
from shorthaul.relational.backends.triton.launch import REALS, choose_product_blocks
from tests.relational.backends.triton_results import KERNELS, interpreted, require_small_errors
from tests.triton_programs import CUBIN_MAGIC, compile_kernel


def test_interpreted_products_equal_pytorch():
    products = tuple(each for each in interpreted(KERNELS) if "product" in each["case"])
    require_small_errors(products, 6)


@pytest.mark.parametrize("element", ["fp32", "bf16"])
def test_the_sum_of_tiles_compiles(element):
    types = {"first": "*i32", "partial": "*fp32", "out": f"*{element}"}
    constants = {"SIZE": 300, "REAL": REALS[torch.float32], "BLOCK": 256}
    made = compile_kernel(triton_products.sum_tiles_kernel, types, constants, 80)
    assert made["cubin"][:4] == CUBIN_MAGIC


@pytest.mark.parametrize(("precision", "is_rounded"), [("ieee", False), ("tf32", True)])
def test_tensor_cores_multiply_float32_only_where_that_is_allowed(precision, is_rounded):
    lists = dict.fromkeys(("limits", "owners", "order", "gather"), "*i64")
    types = {**lists, **dict.fromkeys(("x", "w", "out"), "*fp32")}
    constants = {
        "HAS_ORDER": False, "HAS_GATHER": True, "TURNED": False, "HEADS": 1, "INNER": 1,
        "DEPTH": 64, "WIDTH": 64, "REAL": REALS[torch.float32], "PRECISION": precision,
        **choose_product_blocks(64, 64, torch.float32).constants,
    }  # fmt: skip
    made = compile_kernel(triton_products.product_kernel, types, constants, 80)
    assert (".tf32" in made["ptx"]) == is_rounded
