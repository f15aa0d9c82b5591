"""The CPU needs no guard; what CUDA does with it is tested on pretended devices."""

import pytest
import torch

from shorthaul.jit.launching.device_guard import computing_on, with_number


def test_the_cpu_is_left_alone() -> None:
    with computing_on(torch.device("cpu")):
        assert torch.empty(1).device.type == "cpu"
    assert with_number("cpu") == torch.device("cpu")
    assert with_number("meta") == torch.device("meta")


def test_cuda_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert with_number("cuda") == torch.device("cuda", 3)
    assert with_number("cuda:1") == torch.device("cuda", 1)
