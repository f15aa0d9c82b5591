"""Probes of kernels: they find what is there, and say what is not."""

import os
from pathlib import Path

import pytest
import torch

from shorthaul.cli.probes.kernels import (
    describe_openmp,
    describe_others,
    describe_threads,
    listen_for_others,
    look_at_processor,
    look_at_threads,
    look_for_compiler,
    look_for_openmp,
    look_for_torch,
    try_kernel,
)
from shorthaul.errors import NoCompilerError
from shorthaul.jit import find_toolchain
from shorthaul.settings import settings


def test_torch_is_there() -> None:
    found = look_for_torch()
    assert found.status == "ok"
    assert found.facts["torch"] == torch.__version__


def test_the_compiler_is_the_one_that_kernels_use() -> None:
    found = look_for_compiler()
    assert found.facts["command"] == list(find_toolchain().command)
    assert found.facts["version"] in found.value


def test_a_compiler_asked_for_by_name_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    for look in (look_for_compiler, try_kernel):
        with pytest.raises(NoCompilerError, match="CXX=no-such-compiler"):
            look()


def test_the_processor_has_a_model() -> None:
    found = look_at_processor()
    assert found.value.startswith(found.facts["model"])


def test_a_kernel_works_and_is_compared() -> None:
    found = try_kernel()
    assert found.status == "ok"
    assert found.facts["kernel"].startswith("scaled_sum_")
    assert "equal to PyTorch" in found.value


def test_kernels_that_are_switched_off_are_a_warning() -> None:
    with settings.override(kernels="torch"):
        found = try_kernel()
    assert (found.status, found.advice) == ("warning", "unset SHORTHAUL_KERNELS to use them")


@pytest.mark.parametrize(
    ("threads", "usable", "limit", "status", "value"),
    [
        (8, 8, 8.0, "ok", "8, as torch.get_num_threads() says; 8 processors are usable"),
        (1, 8, 0.5, "ok", None),
        (9, 8, 8.0, "warning", None),
        (
            *(8, 8, 2.5, "warning"),
            "8, as torch.get_num_threads() says; 8 processors are usable, with time for 2.5",
        ),
    ],
)
def test_threads_are_compared_with_processors(threads, usable, limit, status, value) -> None:
    found = describe_threads(threads, usable, limit)
    assert found.status == status
    assert value in (None, found.value)
    assert ("OMP_NUM_THREADS" in found.advice) == (status == "warning")


def test_threads_are_those_of_torch() -> None:
    facts = look_at_threads().facts
    assert facts["threads"] == torch.get_num_threads()
    assert facts["usable_processors"] == len(os.sched_getaffinity(0))


def test_a_second_openmp_runtime_is_a_warning_that_names_it() -> None:
    alone = describe_openmp("/t/libgomp.so.1", ("/t/libgomp.so.1",))
    assert (alone.status, alone.value) == ("ok", "/t/libgomp.so.1, shared with PyTorch")
    both = describe_openmp("/t/libgomp.so.1", ("/s/libgomp.so.1", "/t/libgomp.so.1"))
    assert both.status == "warning"
    assert both.value == "2 runtimes in this process; kernels use /t/libgomp.so.1"
    assert both.advice.endswith(": /s/libgomp.so.1")
    assert describe_openmp(None, ()).status == "warning"


def test_torchs_runtime_is_among_those_mapped() -> None:
    facts = look_for_openmp().facts
    assert any(Path(each).samefile(facts["runtime"]) for each in facts["mapped"])


def test_measurements_beside_others_come_with_a_caution() -> None:
    assert describe_others(0.05) == ""
    assert describe_others(0.5).startswith("others use 50% of the processors")
    heard = listen_for_others()
    assert heard == "" or "of the processors" in heard
