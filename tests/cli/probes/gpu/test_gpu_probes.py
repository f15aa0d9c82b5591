"""The doctor's trials on a GPU: refused by name without one, and wrong numbers are found.

That they pass on a device is tested on pretended ones (`tests/pretended_cuda`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shorthaul.cli.findings import Probe, run_probe
from shorthaul.cli.probes.gpu import GPU_PROBES, paths
from shorthaul.cli.probes.gpu.devices import find_device, find_driver
from shorthaul.cli.probes.gpu.kernels import Trial
from shorthaul.errors import CudaUnavailableError, KernelMismatchError


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_without_a_gpu_every_trial_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CudaUnavailableError, match="TRITON_INTERPRET=1 shorthaul doctor --gpu"):
        find_device()
    for probe in GPU_PROBES:
        if probe.name != "Triton":
            (finding,) = run_probe(probe)
            assert finding.status == ("warning" if probe.is_measurement else "broken")


def test_the_cpu_stands_for_the_device_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert find_device() == torch.device("cpu")


def test_a_wrong_number_is_found() -> None:
    trial, ones = Trial("gathers"), torch.ones(3)
    trial.require_equal("right", ones, ones)
    trial.require_close("right", ones, ones.double())
    with pytest.raises(KernelMismatchError, match=r"gathers \(wrong\): expected the same bits"):
        trial.require_equal("wrong", ones, torch.zeros(3))
    for wrong in (ones * 1.001, ones * float("nan")):
        with pytest.raises(KernelMismatchError, match="of the largest value off"):
            trial.require_close("wrong", wrong, ones.double())


def test_a_failed_trial_breaks_the_report() -> None:
    def look() -> None:
        raise KernelMismatchError("sums", "case", "x", "y")

    (finding,) = run_probe(Probe("Kernels", "sums", look, is_essential=True))  # type: ignore[arg-type]
    assert finding.status == "broken"
    assert "SHORTHAUL_KERNELS=torch" in finding.advice


def test_a_step_of_which_nothing_went_to_disk_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert paths.try_offloading().status == "ok"
    offload = paths.offload_activations

    def keep_all(directory: str, **options: object) -> object:
        return offload(directory, **{**options, "minimum_bytes": 2**40})

    monkeypatch.setattr(paths, "offload_activations", keep_all)
    with pytest.raises(KernelMismatchError, match="expected activations on disk, got none"):
        paths.try_offloading()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
            "550.54.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n",
            "560.35.03",
        ),
        ("something else\n", None),
    ],
)
def test_the_driver_tells_its_version(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version").write_text(text)
    assert find_driver(tmp_path / "version") == version
    assert find_driver(tmp_path / "missing") is None
