"""Convolutions before and after their kernels are compiled: never waiting, and right both times."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.conv.execution import fast_path
from shorthaul.conv.execution.operators import find_problem
from shorthaul.conv.readiness import Needs, has_kernels, list_plans
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.jit import CppSource
from shorthaul.jit.compiling.loading import wait_for_compilers
from shorthaul.jit.compiling.pool import compilers
from shorthaul.meter import meter
from shorthaul.settings import settings
from tests.conv.nothing_compiled import nothing_compiled
from tests.conv.tolerances import require_close
from tests.jit.gated_compiler import closed_gate
from tests.jit.sources import write_compiler


@pytest.fixture(autouse=True)
def _alone(compiled_ahead: list[Future[None]]) -> None:
    """What is compiled ahead for other tests would be counted here: launches, and texts that are written."""
    for each in compiled_ahead:
        each.cancel()
    wait([each for each in compiled_ahead if not each.cancelled()])


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    with nothing_compiled(tmp_path):
        yield tmp_path


def _tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 5, 9, 10), torch.randn(19, 5, 3, 3), torch.randn(19)


def _reference(image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.conv2d(image.double(), weight.double(), bias.double(), padding=1)


def test_a_call_runs_by_aten_until_its_kernel_is_there(gate: Path) -> None:
    image, weight, bias = _tensors()
    plain = torch.conv2d(image, weight, bias, padding=1)
    with closed_gate(gate), meter() as counted:
        for _ in range(3):
            assert torch.equal(sh.conv2d(image, weight, bias, padding=1), plain)
        assert not counted.launches
        assert {"conv_window_general", "conv_panels_float"} <= {
            each.name for each in compilers.under_way()
        }
    wait_for_compilers()
    with meter() as counted:
        ours = sh.conv2d(image, weight, bias, padding=1)
    assert counted.launches["conv_window_general"] == 1
    require_close(ours, _reference(image, weight, bias))
    with settings.override(compiling="wait"):
        assert torch.equal(sh.conv2d(image, weight, bias, padding=1), ours)
    known = fast_path.run_known(2, image, weight, bias, (1, 1, 1, 1, "zeros", None, True))
    assert known is not None
    assert torch.equal(known, ours)


def test_who_waits_gets_the_kernel_at_once(gate: Path) -> None:
    image, weight, bias = _tensors()
    with meter() as counted:
        first = sh.conv2d(image, weight, bias, padding=1, wait=True)
    assert counted.launches["conv_window_general"] == 1
    assert torch.equal(sh.conv2d(image, weight, bias, padding=1), first)


@pytest.mark.parametrize("has_gradient", [False, True])
def test_the_kernel_that_is_asked_for_is_the_one_that_runs(gate: Path, has_gradient: bool) -> None:
    """In a block with gradients, of tensors that need none, the activation is a part of it."""
    image, weight, bias = _tensors()
    weight.requires_grad_(has_gradient)
    with meter() as counted:
        first = sh.conv2d(image, weight, bias, activation="silu", wait=True)
    assert counted.launches["conv_window_general"] == 1
    assert torch.equal(sh.conv2d(image, weight, bias, activation="silu", wait=True), first)
    model = nn.Sequential(nn.Conv2d(5, 19, 3), nn.ReLU()).eval().requires_grad_(has_gradient)
    report = sh.replace_convs(model, fold=True)
    with closed_gate(gate):
        model(image)
    wait_for_compilers()
    before = (gate / "started").read_text()
    model(image)
    assert set(report.layers[0].choices) == {
        "training, input given" if has_gradient else "inference"
    }
    assert (gate / "started").read_text() == before


def test_a_step_of_training_asks_for_all_its_kernels_at_once(gate: Path) -> None:
    image, weight, bias = (each.requires_grad_() for each in _tensors())
    with closed_gate(gate):
        output = sh.conv2d(image, weight, bias, padding=1, stride=2)
        names = {each.name for each in compilers.under_way()}
    assert any(name.startswith("conv_grad_weight") for name in names)
    assert any(name.startswith("conv_grad_bias") for name in names)
    assert any(name.startswith("conv_window") for name in names)
    del output
    wait_for_compilers()
    before = len((gate / "started").read_text().split())
    sh.conv2d(image, weight, bias, padding=1, stride=2).sum().backward()
    assert len((gate / "started").read_text().split()) == before


@pytest.mark.parametrize("compiled", ["nothing", "after the forward pass", "everything"])
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_gradients_are_right_whenever_kernels_come(
    gate: Path, compiled: str, padding_mode: str
) -> None:
    image, weight, bias = (each.requires_grad_() for each in _tensors())

    def step() -> torch.Tensor:
        return sh.conv2d(image, weight, bias, padding=1, padding_mode=padding_mode)

    def compare(output: torch.Tensor) -> None:
        leaves = [each.detach().double().requires_grad_() for each in (image, weight, bias)]
        padded = leaves[0]
        if padding_mode == "reflect":
            padded = nn.functional.pad(padded, (1, 1, 1, 1), "reflect")
        expected = torch.conv2d(padded, *leaves[1:], padding=int(padding_mode == "zeros"))
        factors = torch.randn_like(expected)
        found = torch.autograd.grad(output, (image, weight, bias), factors.float())
        for one, other in zip(
            found, torch.autograd.grad(expected, leaves, factors.float().double()), strict=True
        ):
            require_close(one, other)

    if compiled == "nothing":
        with closed_gate(gate):
            compare(step())
        return
    with closed_gate(gate):
        output = step()
    wait_for_compilers()
    compare(output if compiled == "after the forward pass" else step())
    compare(step())


def test_the_gradient_of_a_given_image_is_not_compiled(gate: Path) -> None:
    image, weight, bias = _tensors()
    sh.conv2d(image, weight.requires_grad_(), bias, stride=2, wait=True).sum().backward()
    names = [path.name for path in (gate / "cache" / "kernels").iterdir() if path.name[0] != "."]
    planned = find_problem(
        5, 19, (1, 3, 3), (1, 2, 2), (0,) * 6, (1, 1, 1), 1, "zeros", "contiguous", True,
        torch.float32, has_bias=True,
    )  # fmt: skip
    assert len(names) <= len(list_plans(planned, (2, 1, 9, 10), Needs(False, True, False), 1))


def test_what_is_there_is_not_asked_for(gate: Path) -> None:
    problem = find_problem(
        5, 19, (1, 3, 3), (1, 1, 1), (0,) * 6, (1, 1, 1), 1, "zeros", "contiguous", True,
        torch.float32,
    )  # fmt: skip
    needs = Needs(True, True, True)
    with closed_gate(gate):
        assert not has_kernels(problem, (2, 1, 9, 10), needs, waits=False)
    wait_for_compilers()
    assert has_kernels(problem, (2, 1, 9, 10), needs, waits=False)
    assert compilers.is_idle()


def test_a_replaced_layer_measures_when_the_compilers_rest(gate: Path) -> None:
    image, weight, bias = _tensors()
    model = nn.Sequential(nn.Conv2d(5, 19, 3, padding=1))
    with torch.no_grad():
        model[0].weight.copy_(weight)
        model[0].bias.copy_(bias)
        plain = model(image)
        report = sh.replace_convs(model)
        with closed_gate(gate):
            assert torch.equal(model(image), plain)
            assert report.layers[0].choices == {}
            assert report.layers[0].describe_choice()[0] == "when compiled"
            for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                assert torch.equal(copied(image), plain)
        wait_for_compilers()
        require_close(model(image), _reference(image, weight, bias))
    assert set(report.layers[0].choices) == {"inference"}
    assert set(report.layers[0].choices["inference"].seconds) == {"window order", "aten"}


def test_what_was_left_to_aten_is_not_compiled_by_the_next_process(gate: Path) -> None:
    image, _, _ = _tensors()
    model = nn.Sequential(nn.Conv2d(5, 19, 3, padding=1)).eval()
    report = sh.replace_convs(model)
    with torch.no_grad(), closed_gate(gate):
        model(image)
    wait_for_compilers()
    with torch.no_grad(), settings.override(autotune="on"):
        model(image)
    (path,) = (gate / "cache" / "tuning").iterdir()
    chosen = report.layers[0].choices["inference"].name
    path.write_text(path.read_text().replace(f'"name": "{chosen}"', '"name": "aten"'))
    report.revert()
    again = sh.replace_convs(model)
    with nothing_compiled(gate), torch.no_grad():
        model(image)
        assert compilers.is_idle()
    assert again.layers[0].choices["inference"].name == "aten"


@pytest.mark.parametrize("has_gradient", [False, True])
def test_who_waits_does_so_under_a_profiler_too(gate: Path, has_gradient: bool) -> None:
    image, weight, bias = _tensors()
    weight.requires_grad_(has_gradient)
    with torch.profiler.profile(), meter() as counted:
        sh.conv2d(image, weight, bias, activation="relu", wait=True)
    assert counted.launches["conv_window_general"] == 1


def test_layers_that_are_always_ours_wait(gate: Path) -> None:
    image, _, _ = _tensors()
    model = nn.Sequential(nn.Conv2d(5, 19, 3))
    sh.replace_convs(model, policy="always")
    with meter() as counted:
        model(image).sum().backward()
    assert counted.launches["conv_window_general"] >= 1


def test_a_kernel_that_does_not_compile_is_told_and_done_without(tmp_path: Path) -> None:
    image, weight, bias = _tensors()
    plain = torch.conv2d(image, weight, bias)
    with nothing_compiled(tmp_path):
        write_compiler(tmp_path / "gated++", "echo 'kernel.cpp: error: no such luck'", "exit 1")
        for _ in range(2):
            assert torch.equal(sh.conv2d(image, weight, bias), plain)
            wait_for_compilers()
        notes = [each for each in taken_fallbacks() if "no such luck" in each.reason]
        assert {"kernel conv_window_general", "kernel conv_panels_float"} <= {
            each.what for each in notes
        }
        assert {each.instead for each in notes} == {"ATen"}
        with pytest.raises(sh.errors.CompileError, match="no such luck"):
            sh.conv2d(image, weight, bias, wait=True)


@pytest.mark.parametrize("fails", [False, True])
def test_calls_that_go_without_their_kernels_emit_none(
    gate: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """To look for them takes longer than a small convolution."""
    image, weight, bias = (each.requires_grad_() for each in _tensors())

    def step() -> None:
        output = sh.conv2d(image, weight, bias, padding=1, activation="relu")
        torch.autograd.grad(output.sum(), (image, weight, bias))
        with torch.no_grad():
            sh.conv2d(image, weight, bias, padding=1, activation="relu")

    if fails:
        write_compiler(gate / "gated++", "echo 'kernel.cpp: error: no such luck'", "exit 1")
        step()
        wait_for_compilers()
    with contextlib.nullcontext() if fails else closed_gate(gate):
        step()
        digests = []
        digest = CppSource.digest
        monkeypatch.setattr(
            CppSource, "digest", lambda *each: digests.append(each[0].name) or digest(*each)
        )
        step()
        assert digests == []
        assert compilers.is_idle() == fails


def test_a_forked_worker_goes_on_by_itself(gate: Path) -> None:
    image, weight, bias = _tensors()
    plain = torch.conv2d(image, weight, bias)
    with closed_gate(gate):
        sh.conv2d(image, weight, bias)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                same = torch.equal(sh.conv2d(image, weight, bias), plain)
                status = 0 if same and compilers.under_way() else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_compiled_graphs_run_before_and_after(gate: Path) -> None:
    image, weight, bias = _tensors()
    layer = sh.Conv2d(5, 19, 3, padding=1)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with torch.no_grad():
        with closed_gate(gate):
            assert torch.equal(compiled(image), torch.conv2d(image, weight, bias, padding=1))
        wait_for_compilers()
        with meter() as counted:
            require_close(compiled(image), _reference(image, weight, bias))
        assert counted.launches["conv_window_general"] == 1
