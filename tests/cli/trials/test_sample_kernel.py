"""The sample kernel: right on any size and any number of threads."""

import pytest
import torch

from shorthaul.cli.trials.sample_kernel import emit_scaled_sum, run_sample
from shorthaul.jit import load_kernel


@pytest.mark.parametrize("elements", [1, 1023, 1024, 5000])
def test_it_equals_pytorch(elements: int) -> None:
    run = run_sample(elements)
    assert run.is_equal
    assert run.elements == elements
    assert run.kernel.name.startswith("scaled_sum_")


def test_it_computes_what_its_comment_says() -> None:
    x, y, out = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), torch.empty(2)
    load_kernel(emit_scaled_sum()).scaled_sum(x, y, 0.5, out)
    assert out.tolist() == [10.5, 21.0]
