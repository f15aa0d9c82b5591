"""Every operation with tensors of every kind: as with plain ones of the same values, or a refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shorthaul.errors import RowArgumentError, TableFormatError, UnifiedSourceError
from tests.matrix.cells import run_with
from tests.matrix.given import GIVEN, as_plain
from tests.matrix.operation import Operation, random_tensor
from tests.matrix.table import OPERATIONS

# What an operation refuses, and by which error: a table is its memory, and this is not the values.
REFUSED: dict[tuple[str, str], type[Exception]] = {
    **{
        (name, "negated"): UnifiedSourceError
        for name in OPERATIONS
        if name.startswith(("u[", "u.", "slices of u", "new and shared u"))
    },
    **{
        (name, "negated"): RowArgumentError
        for name in OPERATIONS
        if name.endswith(" rows")
        or (name.startswith(("MiniBatchLoader", "LinkLoader")) and "disk" not in name)
    },
    **{
        ("a .pt file", kind): TableFormatError  # rows that are not side by side, or not the values
        for kind in ("strided", "transposed", "negated")
    },
}


def list_cells() -> Iterator[object]:
    """Those that compile kernels of their own are left to `make test-all`."""
    for operation in OPERATIONS.values():
        compiles = operation.name in ("a layer of one's own", "sh.conv2d")
        for kind in GIVEN:
            is_slow = operation.is_heavy or (compiles and kind == "float64")
            marks = [pytest.mark.slow, pytest.mark.timeout(600)] if is_slow else []
            yield pytest.param(operation, kind, marks=marks, id=f"{operation}-{kind}")


@pytest.mark.parametrize(("operation", "kind"), list(list_cells()))
def test_an_operation_with_a_kind_of_tensor(
    operation: Operation, kind: str, tmp_path: Path
) -> None:
    refusal = REFUSED.get((operation.name, kind))
    with contextlib.nullcontext() if refusal is None else pytest.raises(refusal):
        run_with(operation, kind, tmp_path)


def test_kinds_are_what_they_are_called(tmp_path: Path) -> None:
    plain = {"x": random_tensor(4, 3), "y": random_tensor(3, 2), "ids": torch.tensor([2, 0, 1])}
    made = {kind: change(plain, tmp_path) for kind, change in GIVEN.items()}
    for kind, given in made.items():
        values = as_plain(given)
        for name in ("x", "ids"):
            assert torch.equal(values[name].double(), plain[name].double()), (kind, name)
    assert not made["strided"]["x"].is_contiguous()
    assert not made["transposed"]["x"].is_contiguous()
    assert made["shifted"]["x"].storage_offset() == 1
    assert made["negated"]["x"].is_neg()
    assert made["aliased"]["x"].data_ptr() == made["aliased"]["y"].data_ptr()
    assert made["float64"]["x"].dtype is torch.float64
    assert made["int32"]["ids"].dtype is torch.int32
