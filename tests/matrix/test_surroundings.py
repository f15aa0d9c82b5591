"""Every operation in every surrounding: the same numbers as in a plain one, or a refusal by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.matrix.cells import run_in
from tests.matrix.operation import Operation, require_same
from tests.matrix.surroundings import SLOW, SURROUNDINGS
from tests.matrix.table import OPERATIONS

# What an operation refuses in a surrounding, and by which error.
REFUSED: dict[tuple[str, str], type[Exception]] = {}


def list_cells() -> Iterator[object]:
    """Those that compile kernels, or are traced, are left to `make test-all`."""
    for operation in OPERATIONS.values():
        for surrounding in SURROUNDINGS:
            is_slow = operation.is_heavy or surrounding in SLOW
            marks = [pytest.mark.slow, pytest.mark.timeout(600)] if is_slow else []
            yield pytest.param(operation, surrounding, marks=marks, id=f"{operation}-{surrounding}")


@pytest.mark.parametrize(("operation", "surrounding"), list(list_cells()))
def test_an_operation_in_a_surrounding(
    operation: Operation, surrounding: str, tmp_path: Path
) -> None:
    refusal = REFUSED.get((operation.name, surrounding))
    with contextlib.nullcontext() if refusal is None else pytest.raises(refusal):
        run_in(operation, surrounding, tmp_path)


def test_surroundings_leave_nothing_behind(tmp_path: Path) -> None:
    def look() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_num_threads(),
        )

    before = look()
    for number, surround in enumerate(SURROUNDINGS.values()):
        (tmp_path / str(number)).mkdir()
        surround(lambda: {"out": torch.ones(1, device="cpu")}, tmp_path / str(number))
        assert look() == before


@pytest.mark.parametrize(
    "found",
    [
        {"out": torch.tensor([1.0, 2.5])},
        {"out": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"out": torch.tensor([[1.0, 2.0]])},
        {"out": torch.tensor([1.0, 2.0], device="meta")},
        {},
        {"out": torch.tensor([1.0, 2.0]), "gradient of x": torch.ones(1)},
    ],
    ids=["value", "dtype", "shape", "device", "missing", "more"],
)
@pytest.mark.parametrize("is_exact", [True, False])
def test_what_differs_is_found(found: dict[str, torch.Tensor], is_exact: bool) -> None:
    operation = Operation("any", dict, lambda _, __: dict, is_exact=is_exact, tolerance=1e-4)
    expected = {"out": torch.tensor([1.0, 2.0])}
    require_same(operation, expected, expected)
    with pytest.raises(AssertionError):
        require_same(operation, expected, found)
