"""The comparison that everything else rests on fails where it should."""

import pytest
import torch

from tests.conv.tolerances import require_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_fails_on_unequal_values(dtype: torch.dtype) -> None:
    right = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    require_close(right.to(dtype), right)
    with pytest.raises(AssertionError, match="of the largest value"):
        require_close((right + torch.tensor([0.0, 0.0, 0.05])).to(dtype), right, parts=right.abs())


def test_it_fails_on_shapes_and_on_what_is_not_finite() -> None:
    ones = torch.ones(2)
    with pytest.raises(AssertionError, match="is not"):
        require_close(ones, torch.ones(3))
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(AssertionError):
            require_close(torch.tensor([1.0, wrong]), ones.double())


def test_sums_that_cancel_may_be_off_by_roundings_of_their_parts_alone() -> None:
    expected, parts = torch.tensor([1e-4], dtype=torch.float64), torch.ones(1)
    require_close(torch.tensor([1e-4 + 1e-7]), expected, parts=parts)
    with pytest.raises(AssertionError, match="of the largest value"):
        require_close(torch.tensor([1e-4 + 1e-7]), expected)
    with pytest.raises(AssertionError, match="of the largest value"):
        require_close(torch.tensor([1e-4 + 1e-6]), expected, parts=parts)
