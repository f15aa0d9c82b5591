"""Advice about memory is given for whole pages inside a tensor, and never harms."""

import pytest
import torch

from shorthaul.errors import RowArgumentError
from shorthaul.tensors.memory.advice import ADVICE, advise_memory


@pytest.mark.parametrize("advice", sorted(ADVICE))
def test_advice_keeps_the_values(advice: str) -> None:
    x = torch.arange(100_000)
    advise_memory(x[1::2], advice)
    assert torch.equal(x, torch.arange(100_000))


def test_tensors_smaller_than_a_page_are_left_alone() -> None:
    assert advise_memory(torch.zeros(3), "random")
    assert advise_memory(torch.zeros(0, 5), "random")


def test_unknown_advice_is_refused() -> None:
    with pytest.raises(RowArgumentError, match="must be one of random, sequential"):
        advise_memory(torch.zeros(3), "quickly")
