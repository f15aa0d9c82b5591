"""Every row of the table of backends."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.relational.backends.choice import choose_backend
from shorthaul.settings import settings

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_cpus_run_cpp_and_gpus_triton():
    pytest.importorskip("triton")
    assert choose_backend("auto", CPU) == "cpp"
    assert choose_backend("auto", GPU) == "triton"
    assert choose_backend("triton", GPU) == "triton"
    assert choose_backend("reference", CPU) == choose_backend("reference", GPU) == "reference"


def test_kernels_can_be_switched_off():
    with settings.override(kernels="torch"):
        assert choose_backend("auto", CPU) == choose_backend("auto", GPU) == "reference"
        assert choose_backend("cpp", CPU) == "cpp"
    noted = [each for each in taken_fallbacks() if each.what == "relational"]
    assert ("plain PyTorch", "SHORTHAUL_KERNELS is torch") in {
        (each.instead, each.reason) for each in noted
    }


def test_triton_on_a_cpu_needs_its_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(LayerArgumentError, match="TRITON_INTERPRET=1"):
        choose_backend("triton", CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_backend("triton", CPU) == "triton"


def test_what_cannot_be_is_refused():
    with pytest.raises(LayerArgumentError, match="tensors are on cuda:0"):
        choose_backend("cpp", GPU)
    with pytest.raises(LayerArgumentError, match="auto, cpp, triton, reference"):
        choose_backend("cuda", GPU)
