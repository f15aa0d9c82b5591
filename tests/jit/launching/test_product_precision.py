"""Products are as exact as the user told PyTorch that its own should be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from shorthaul.jit.launching.product_precision import choose_product_precision


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("asked", "expected"), [("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")]
)
def test_what_pytorch_was_told_holds_for_float32_alone(asked: str, expected: str) -> None:
    torch.set_float32_matmul_precision(asked)
    assert choose_product_precision(torch.float32) == expected
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert choose_product_precision(dtype) == "ieee"


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="came with PyTorch 2.9"
)
def test_the_newer_setting_holds_too() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert choose_product_precision(torch.float32) == "tf32"
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert choose_product_precision(torch.float32) == "ieee"
