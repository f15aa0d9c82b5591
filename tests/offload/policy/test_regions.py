"""Regions that are computed again: gradients bit-equal to keep-all, random state included."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import shorthaul as sh
from shorthaul.offload.policy.planner import Measured
from shorthaul.offload.policy.policy import OffloadPlanned
from shorthaul.offload.policy.regions import ModuleRegion, mark_regions, unmark, watch_recomputed
from shorthaul.offload.policy.simulation import Decision, Disk
from tests.offload.keep_all import gradients_of, require_equal, settled_report, small_offload


class Block(nn.Module):
    """Saves several times its input, and draws random numbers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(F.gelu(self.up(self.norm(x))), 0.2)
        return x + self.down(hidden) * scale


class Model(nn.Module):
    """Some blocks with something before and after them."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.blocks = nn.Linear(64, 64), nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        for block in self.blocks:
            h = block(h, scale=h.detach().abs().mean())
        return h.square().mean()


VERY_SLOW = Disk(1e4, 1e4)  # minutes for a step, however busy the machine is
X = torch.randn(128, 64, generator=torch.Generator().manual_seed(1))


class Recomputes(OffloadPlanned):
    """A plan by hand: these regions are computed again."""

    def __init__(self, *regions: int) -> None:
        super().__init__(
            budget_bytes=2**30,
            in_flight_bytes=2**20,
            prefetch_bytes=2**20,
            measure_disk=lambda: None,
        )
        self.recomputed = frozenset(regions)


@pytest.mark.parametrize("recomputed", [(), (0,), (1, 3), tuple(range(6))], ids=str)
def test_gradients_are_bit_equal_whatever_is_recomputed(recomputed, tmp_path):
    model = Model()
    leaves = [*model.parameters()]
    expected = gradients_of(leaves, lambda: model(X))
    mark_regions(model, Block)
    offload = small_offload(tmp_path)
    offload.policy = Recomputes(*recomputed)
    for _ in range(3):
        with offload:
            require_equal(expected, gradients_of(leaves, lambda: model(X)))
    report = settled_report(offload)
    assert report.counts.recomputed_regions == 3 * len(recomputed)
    assert (report.live_bytes, report.disk_bytes) == (0, 0)
    # A recomputed block saves its inputs only.
    whole_bytes = report.counts.peak_saved_bytes
    assert (whole_bytes < 0.4 * _saved_bytes(tmp_path)) == (len(recomputed) == 6)


def _saved_bytes(directory) -> int:
    model, offload = Model(), small_offload(directory, policy=lambda _: False)
    with offload:
        model(X).backward()
    return offload.report().counts.peak_saved_bytes


def test_a_slow_disk_makes_the_plan_recompute_and_the_step_follows(tmp_path, monkeypatch):
    model = Model()
    leaves = [*model.parameters()]
    expected = gradients_of(leaves, lambda: model(X))
    budget = 640 * 1024
    offload = sh.offload.wrap(
        model,
        tmp_path,
        regions=model.blocks,
        minimum_bytes=1024,
        budget=budget,
    )
    monkeypatch.setattr(offload.policy, "_measure_disk", lambda: VERY_SLOW)
    monkeypatch.setattr(
        "shorthaul.offload.policy.policy.explain_drift", lambda *_: ()
    )  # times do here
    for _ in range(4):
        require_equal(expected, gradients_of(leaves, lambda: model(X)))
    report = settled_report(offload)
    assert report.counts.recomputed_regions > 0, report.explanation
    assert report.counts.peak_live_bytes <= budget
    assert "recompute" in report.explanation
    offload.unwrap()
    assert not any(isinstance(each.__dict__.get("forward"), ModuleRegion) for each in model.blocks)


def test_a_step_of_another_pace_keeps_recomputing_under_a_plan_for_that_pace(tmp_path, monkeypatch):
    model = Model()
    offload = sh.offload.wrap(model, tmp_path, regions=Block, minimum_bytes=1024, budget=640 * 1024)
    policy = offload.policy
    assert isinstance(policy, OffloadPlanned)
    monkeypatch.setattr(policy, "_measure_disk", lambda: VERY_SLOW)
    model(X).backward()
    first, recomputed = policy.plan, policy.recomputed
    assert first is not None
    assert recomputed
    measured = Measured(
        first.disk.write_bytes_per_second,
        first.disk.read_bytes_per_second,
        first.compute_seconds * 3,
        sum(unit.size_bytes for unit in first.units),
    )
    monkeypatch.setattr(policy, "_measured", None)
    monkeypatch.setattr(policy, "_measure_pass", lambda *_: measured)
    model(X).backward()
    assert policy.plans_made == 2
    assert policy.recomputed, "no pass offloads everything to find out what is known"
    assert policy.plan is not None
    assert policy.plan.compute_seconds == pytest.approx(3 * first.compute_seconds)
    model(X).backward()
    assert policy.plans_made == 2
    assert policy.drift == ()


def test_a_drift_under_a_plan_that_recomputes_looks_at_a_whole_pass_again(tmp_path, monkeypatch):
    model = Model()
    offload = sh.offload.wrap(model, tmp_path, regions=Block, minimum_bytes=1024, budget=640 * 1024)
    policy = offload.policy
    assert isinstance(policy, OffloadPlanned)
    monkeypatch.setattr(policy, "_measure_disk", lambda: VERY_SLOW)
    model(X).backward()
    first = policy.plan
    assert policy.recomputed
    model(X[:64]).backward()  # half of the sizes
    assert (policy.plan, policy.recomputed) == (None, frozenset())
    assert "no plan yet" in policy.explain()
    plans = []
    for _ in range(3):
        model(X[:64]).backward()
        plans.append(policy.plan)
    assert any(each is not None and each is not first for each in plans)


def test_the_plan_of_a_model_may_recompute_its_regions(tmp_path, monkeypatch):
    monkeypatch.setattr(sh.offload.ActivationOffload, "measure_disk", lambda _: VERY_SLOW)
    model = Model()
    plan = sh.offload.plan(
        model,
        X,
        budget="500KiB",
        directory=tmp_path,
        regions=Block,
        minimum_bytes=1024,
    )
    assert Decision.RECOMPUTE in plan.decisions
    inputs = [each for each in plan.units if each.region and not each.can_recompute]
    assert len(inputs) >= 5  # of the blocks, saved by their norms
    assert not any(isinstance(each.__dict__.get("forward"), ModuleRegion) for each in model.blocks)


def test_functions_and_nested_regions(tmp_path):
    x = X.clone().requires_grad_()

    @sh.offload.region
    def inner(h: torch.Tensor) -> torch.Tensor:
        return F.dropout((h * 2).sin(), 0.3)

    @sh.offload.region
    def outer(h: torch.Tensor, *, parts: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        return inner(h) * inner(h.cos()) + parts["more"][0]

    def step() -> torch.Tensor:
        h = x * 3
        return outer(h, parts={"more": [h * h]}).square().sum()

    expected = gradients_of([x], step)
    offload = small_offload(tmp_path)
    offload.policy = Recomputes(0)
    with offload:
        require_equal(expected, gradients_of([x], step))
    assert offload.report().counts.recomputed_regions == 1
    assert inner.__name__ == "inner"


def test_a_region_outside_of_a_context_or_without_gradients_is_what_it_was(tmp_path):
    block = sh.offload.region(Block())
    assert sh.offload.region(block) is block
    scale = torch.ones(())
    with small_offload(tmp_path) as offload:
        offload.policy = Recomputes(0)
        with torch.no_grad():
            block(X, scale=scale)
    assert offload.report().counts.recomputed_regions == 0
    block(X, scale=scale).sum().backward()
    assert sorted(block.state_dict()) == sorted(Block().state_dict())


def test_marked_modules_can_be_copied_and_pickled():
    block = sh.offload.region(Block())
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        with torch.no_grad():
            other.down.weight.zero_()
            other.down.bias.zero_()
        assert torch.equal(other(X, scale=torch.ones(())), X)
        assert not torch.equal(block(X, scale=torch.ones(())), X)


def test_a_forward_of_the_instance_is_kept_and_put_back():
    block = Block()
    block.forward = lambda x, scale: x * scale
    own = block.forward
    sh.offload.region(block)
    assert torch.equal(block(X, scale=torch.ones(())), X)
    unmark(block)
    assert block.forward is own


def test_an_exception_in_a_region_leaves_nothing(tmp_path):
    @sh.offload.region
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(f"after {x.sin().shape}")

    x = X.clone().requires_grad_()
    offload = small_offload(tmp_path)
    for recomputed in ((), (0,)):
        offload.policy = Recomputes(*recomputed)
        with offload, pytest.raises(KeyError):
            fails(x * 2)
    assert settled_report(offload).live_bytes == 0


def test_what_is_recomputed_counts_as_live_while_it_is(tmp_path):
    model = Model(2)
    mark_regions(model, Block)
    offload = small_offload(tmp_path)
    offload.policy = Recomputes(0, 1)
    with offload:
        loss = model(X)
    offload.store.wait_until_idle()
    peak_before = offload.report().counts.peak_live_bytes
    loss.backward()
    hidden_bytes = 128 * 256 * 4
    assert offload.report().counts.peak_live_bytes >= peak_before + 2 * hidden_bytes
    assert settled_report(offload).live_bytes == 0


def test_watching_leaves_the_hooks_that_are_set_as_they_are():
    seen: list[torch.Tensor] = []
    x = X.clone().requires_grad_()
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()),
        watch_recomputed(seen.append),
    ):
        (x * 2).sin().sum().backward()
    assert len(seen) == 1
    assert torch.equal(x.grad, 2 * (X * 2).half().float().cos())
    with watch_recomputed(seen.append):
        (x * 2).sin()
    assert len(seen) == 1  # without hooks there is nothing to watch
