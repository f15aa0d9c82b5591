"""Who computes, and what is said about it."""

import torch

from shorthaul.conv import aten
from shorthaul.conv.backend import choose_backend
from shorthaul.conv.problem import ConvProblem
from shorthaul.fallbacks import taken_fallbacks


def test_aten_computes_what_has_no_kernel_and_it_is_noted() -> None:
    problem = ConvProblem(2, 2, (1, 3, 3), dtype=torch.float64)
    assert choose_backend(problem, torch.device("meta")) is aten
    reasons = {each.reason for each in taken_fallbacks() if each.what == "convolution"}
    assert any("meta" in reason for reason in reasons)
