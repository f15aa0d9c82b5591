"""Functions of elements in Triton's interpreter against PyTorch's, and dropout's choice."""

import pytest

pytest.importorskip("triton")

from tests.relational.backends.triton_results import KERNELS, interpreted, require_small_errors


@pytest.mark.parametrize(
    ("case", "count"), [("functions", 2), ("kept", 1), ("NaN", 1), ("large logits", 1)]
)
def test_numbers_are_those_of_pytorch(case, count):
    chosen = tuple(each for each in interpreted(KERNELS) if each["case"].startswith(case))
    assert len(chosen) == count
    require_small_errors(chosen, count)
