"""Who computes, and what is said about it."""

import pytest
import torch

from shorthaul.conv import aten
from shorthaul.conv.execution.backend import KERNELS_WHEN_READY, choose_backend, reason_for_aten
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.triton.measured import Measured
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.settings import settings

PROBLEM = ConvProblem(2, 2, (1, 3, 3))
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_generated_kernels_compute_on_the_cpu() -> None:
    assert choose_backend(PROBLEM, CPU) is KERNELS_WHEN_READY
    assert reason_for_aten(PROBLEM, "cpu") is None


def test_aten_computes_when_it_is_asked_for_and_it_is_noted() -> None:
    with settings.override(kernels="torch"):
        assert choose_backend(PROBLEM, CPU) is aten
    reasons = {each.reason for each in taken_fallbacks() if each.what == "convolution"}
    assert "SHORTHAUL_KERNELS is torch" in reasons
    assert choose_backend(PROBLEM, CPU) is KERNELS_WHEN_READY


def test_aten_computes_on_other_devices() -> None:
    assert choose_backend(PROBLEM, torch.device("meta")) is aten
    assert reason_for_aten(PROBLEM, "meta") == "there is no generated kernel for meta"


def test_triton_kernels_are_used_where_they_are_asked_for() -> None:
    pytest.importorskip("triton")
    from shorthaul.conv.triton import launch as triton_launch

    assert isinstance(choose_backend(PROBLEM, CUDA), Measured)
    with settings.override(kernels="torch"):
        assert choose_backend(PROBLEM, CUDA) is aten
        assert reason_for_aten(PROBLEM, "cuda") == "SHORTHAUL_KERNELS is torch"
    with settings.override(kernels="generated"):
        assert choose_backend(PROBLEM, CUDA) is triton_launch
        double = ConvProblem(2, 2, (1, 3, 3), dtype=torch.float64)
        assert choose_backend(double, CUDA) is aten
    assert choose_backend(double, CUDA) is aten
