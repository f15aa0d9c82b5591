from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.errors import ActivationLostError, PlanError
from tests.offload.keep_all import gradients_of, require_equal


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))


def lost() -> ActivationLostError:
    return ActivationLostError("float32 (2,)", "Block", "file", 0, "the disk broke")


def test_a_wrapped_model_offloads_until_it_is_unwrapped(tmp_path):
    model, x = make_model(), torch.randn(64, 64)
    leaves = list(model.parameters())
    expected = gradients_of(leaves, lambda: model(x).square().mean())
    names = list(model.state_dict())
    offload = sh.offload.wrap(model, tmp_path, minimum_bytes=1024)
    require_equal(expected, gradients_of(leaves, lambda: model(x).square().mean()))
    counted = offload.report().counts.offloaded
    assert counted > 5
    assert list(model.state_dict()) == names
    offload.unwrap()
    model(x).sum().backward()
    assert offload.report().counts.offloaded == counted


def test_an_exception_in_a_wrapped_forward_leaves_no_hooks_on(tmp_path):
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("forward fails")

    model = Fails()
    offload = sh.offload.wrap(model, tmp_path, minimum_bytes=1024)
    with pytest.raises(KeyError):
        model(torch.ones(2))
    x = torch.randn(64, 64, requires_grad=True)
    (x * 2).sin().sum().backward()
    assert offload.report().counts.offloaded == 0


@pytest.mark.parametrize("form", ["tensor", "tuple", "mapping", "output with a loss"])
def test_a_plan_shows_a_step_before_training_and_changes_nothing(form, tmp_path):
    model, x = make_model(), torch.randn(64, 64)
    model(x).sum().backward()
    before = [each.grad.clone() for each in model.parameters()]
    state = torch.get_rng_state()
    batch = {"tensor": x, "tuple": (x,), "mapping": {"input": x}, "output with a loss": x}[form]
    if form == "output with a loss":
        inner = model

        class Output:
            def __init__(self, loss: torch.Tensor) -> None:
                self.loss = loss

        class Loses(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: torch.Tensor) -> Output:
                return Output(self.inner(x).mean())

        model = Loses()
    plan = sh.offload.plan(model, batch, budget="80KiB", directory=tmp_path, minimum_bytes=1024)
    assert plan.fits
    assert plan.simulation.peak_live_bytes <= 80 * 1024 < plan.kept_peak_bytes
    require_equal(before, [each.grad for each in model.parameters()])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_plan_that_cannot_fit_names_the_budget_that_would(tmp_path):
    model, x = make_model(), torch.randn(64, 64)
    plan = sh.offload.plan(model, x, budget="12KiB", directory=tmp_path, minimum_bytes=1024)
    assert not plan.fits
    assert plan.smallest_budget_bytes is not None
    assert f"{plan.smallest_budget_bytes:,} bytes" in plan.explain()


def test_without_a_budget_several_are_compared(tmp_path):
    model, x = make_model(), torch.randn(64, 64)
    plans = sh.offload.plan(model, x, directory=tmp_path, minimum_bytes=1024).plans
    budgets = [each.budget_bytes for each in plans]
    assert len(budgets) >= 3
    assert budgets == sorted(budgets, reverse=True)
    assert all(each.fits for each in plans)
    assert plans[0].simulation.written_bytes == 0, "everything is kept"
    assert plans[-1].planned_write_bytes > 0
    text = str(sh.offload.plan(model, x, directory=tmp_path, minimum_bytes=1024))
    assert text.splitlines()[0].split() == ["budget", "step", "waiting", "recomputing", "written"]
    assert len(text.splitlines()) >= 4


def test_a_plan_changes_no_buffers_and_leaves_nothing_open(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    sh.offload.plan(model, torch.randn(64, 64), directory=tmp_path, minimum_bytes=1024)
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name]), name


def test_a_wrapped_model_can_be_saved_and_copied_and_the_copy_is_plain(tmp_path):
    model, x = make_model(), torch.randn(64, 64)
    offload = sh.offload.wrap(model, tmp_path, minimum_bytes=1024, regions=nn.Linear)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (loaded, copy.deepcopy(model)):
        assert torch.equal(other(x), model(x))
        before = offload.report().counts.offloaded
        other(x).sum().backward()
        assert offload.report().counts.offloaded == before
    model(x).sum().backward()
    assert offload.report().counts.offloaded > before


def test_a_plan_of_nothing_says_what_to_lower(tmp_path):
    with pytest.raises(PlanError, match="lower `minimum_bytes`"):
        sh.offload.plan(make_model(), torch.randn(64, 64), budget="1MiB", directory=tmp_path)


def test_a_step_is_run_again_with_gradients_and_randomness_as_before():
    x = torch.ones(3, requires_grad=True)
    x.grad = torch.full((3,), 5.0)
    drawn = []

    def step() -> str:
        drawn.append(torch.rand(()).item())
        x.grad.add_(1)
        if len(drawn) < 3:
            raise lost()
        return "done"

    assert sh.offload.retry_step(step, [x], attempts=2) == "done"
    assert torch.equal(x.grad, torch.full((3,), 6.0))
    assert len(set(drawn)) == 1


def test_a_step_that_keeps_failing_raises_and_other_errors_are_not_retried():
    x = torch.ones(3, requires_grad=True)
    calls = []

    def fails() -> None:
        calls.append(1)
        raise lost()

    with pytest.raises(ActivationLostError):
        sh.offload.retry_step(fails, [x], attempts=2)
    assert len(calls) == 3
    assert x.grad is None

    def breaks() -> None:
        calls.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sh.offload.retry_step(breaks, nn.Linear(2, 2))
    assert len(calls) == 4
