from __future__ import annotations

import pytest
import torch

import shorthaul as sh
from shorthaul.dtypes import parse_dtype
from shorthaul.errors import RowArgumentError


@pytest.mark.parametrize("given", ["float32", "torch.float32", torch.float32])
def test_a_dtype_is_known_by_its_name(given):
    assert parse_dtype(given) is torch.float32


@pytest.mark.parametrize("given", ["float33", "Tensor", "", 32, float])
def test_anything_else_is_refused_by_name(given):
    with pytest.raises(RowArgumentError, match=r"dtype must be a torch\.dtype or its name"):
        parse_dtype(given)


def test_names_are_taken_wherever_a_dtype_is(tmp_path):
    made = sh.unified_empty(3, 2, dtype="float64")
    assert made.dtype is torch.float64
    assert sh.unified_zeros(3, dtype="int32").dtype is torch.int32
    rows = torch.arange(12.0).view(6, 2)
    for name in ("x.npy", "x.raw"):
        saved = sh.save_features(tmp_path / name, rows, dtype="float32", progress=False)
        assert saved.dtype is torch.float32
    opened = sh.open(tmp_path / "x.raw", dtype="float32", shape=(-1, 2))
    assert torch.equal(opened[torch.tensor([5, 0])], rows[[5, 0]])
