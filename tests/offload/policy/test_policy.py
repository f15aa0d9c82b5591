from __future__ import annotations

import pytest
import torch

import shorthaul as sh
from shorthaul.offload.policy.backward_order import ForwardPass, Place
from shorthaul.offload.policy.planner import plan_step
from shorthaul.offload.policy.policy import (
    OffloadAll,
    OffloadChosen,
    OffloadPlanned,
    OffloadPrefix,
    SavedTensor,
    units_of,
)
from shorthaul.offload.policy.simulation import Decision, Disk
from tests.offload.keep_all import gradients_of, require_equal, settled_report

SIZE = 8192


def saved(position: int, size: int = SIZE) -> SavedTensor:
    place = Place(number=position)
    return SavedTensor(size, "torch.float32", (size // 4,), "Block.Linear", position, place)


def finished_pass(count: int, seconds: float = 1.0, size: int = SIZE) -> ForwardPass:
    """Saved one per `seconds`, then used in reverse at the same pace."""
    each = ForwardPass()
    each.sizes = [size] * count
    each.names = [f"{position}: Block" for position in range(count)]
    each.places = [Place(number=position) for position in range(count)]
    each.packed_at = [100 + position * seconds for position in range(count)]
    for rank, position in enumerate(reversed(range(count))):
        at = 100 + (count + 2 * rank) * seconds
        each.used.append(position)
        each.used_at[position] = (at, at)
    return each


def planned(budget: int, disk: Disk | None = None, **knobs) -> OffloadPlanned:
    policy = OffloadPlanned(
        budget_bytes=budget,
        in_flight_bytes=SIZE,
        prefetch_bytes=SIZE,
        measure_disk=lambda: disk or Disk(SIZE * 2.0, SIZE * 2.0),
        **knobs,
    )
    policy.prepare()
    return policy


def test_all_and_chosen():
    assert OffloadAll().should_offload(saved(0))
    odd = OffloadChosen(lambda each: each.position % 2 == 1)
    assert [odd.should_offload(saved(at)) for at in range(3)] == [False, True, False]
    assert "decides" in odd.explain()


def test_a_plan_is_made_from_the_first_pass_and_followed():
    policy = planned(6 * SIZE)
    assert all(policy.should_offload(saved(at)) for at in range(10))
    assert "no plan yet" in policy.explain()
    policy.learn(finished_pass(10))
    assert policy.plan is not None
    assert policy.plan.fits
    decisions = [policy.should_offload(saved(at)) for at in range(10)]
    assert decisions == [each is not Decision.KEEP for each in policy.plan.decisions]
    assert decisions[0]
    assert not decisions[-1], "what is saved last and used first stays"
    assert "plan number 1" in policy.explain()


def test_where_a_pass_departs_from_the_plan_everything_is_offloaded():
    policy = planned(20 * SIZE)
    policy.learn(finished_pass(10))
    assert not policy.should_offload(saved(9))
    assert policy.should_offload(saved(9, size=2 * SIZE))
    assert policy.should_offload(saved(10))


@pytest.mark.parametrize("what", ["time", "size"])
def test_drift_makes_a_new_plan_and_noise_does_not(what):
    policy = planned(6 * SIZE)
    policy.learn(finished_pass(10))
    policy.learn(finished_pass(10, seconds=1.02))
    assert policy.plans_made == 1
    for _ in range(12):
        policy.learn(
            finished_pass(10, seconds=3.0) if what == "time" else finished_pass(10, size=2 * SIZE)
        )
    assert 2 <= policy.plans_made <= 4
    assert policy.plan is not None
    if what == "size":
        assert policy.plan.units[0].size_bytes == 2 * SIZE
    else:
        assert policy.plan.compute_seconds > 50


def test_a_disk_that_slows_down_is_measured_again_when_steps_drift():
    disks = [Disk(SIZE * 2.0, SIZE * 2.0), Disk(SIZE / 10, SIZE / 10)]
    policy = OffloadPlanned(
        budget_bytes=6 * SIZE,
        in_flight_bytes=SIZE,
        prefetch_bytes=SIZE,
        measure_disk=lambda: disks.pop(0) if len(disks) > 1 else disks[0],
    )
    policy.prepare()
    policy.learn(finished_pass(10))
    for _ in range(12):
        policy.learn(finished_pass(10, seconds=3.0))
    assert policy.plan is not None
    assert policy.plan.disk == Disk(SIZE / 10, SIZE / 10)


def test_the_wear_limit_reaches_the_plan():
    asked: list[float] = []

    def limits(seconds: float) -> tuple[int, ...]:
        asked.append(seconds)
        return (SIZE, 10 * SIZE)

    strict = planned(7 * SIZE, limit_writes=limits)
    strict.learn(finished_pass(8))
    assert asked == [22.0]  # the length of a step
    assert strict.plan.fits
    assert strict.plan.planned_write_bytes <= SIZE


def test_a_wear_limit_that_lets_nothing_fit_gives_way_to_the_next_and_then_says_so(caplog):
    late = planned(4 * SIZE, limit_writes=lambda _: (SIZE, 10 * SIZE))
    late.learn(finished_pass(8))
    assert late.plan.fits
    assert SIZE < late.plan.planned_write_bytes <= 10 * SIZE
    assert caplog.records == []
    never = planned(4 * SIZE, limit_writes=lambda _: (0, SIZE))
    never.learn(finished_pass(8))
    assert not never.plan.fits
    assert "the smallest budget that works" in caplog.text


def test_units_carry_the_times_of_a_pass():
    each = finished_pass(3)
    each.used.remove(0)
    del each.used_at[0]
    units = units_of(each)
    assert [unit.produced_at_seconds for unit in units] == [0.0, 1.0, 2.0]
    assert [unit.first_use_at_seconds for unit in units] == [5.0, 5.0, 3.0]
    assert units_of(ForwardPass()) == []
    assert plan_step(
        units, budget_bytes=3 * SIZE, disk=Disk(1e9, 1e9), in_flight_bytes=1, prefetch_bytes=1
    ).fits


def test_the_published_rule_decides_once_from_the_third_pass():
    policy = OffloadPrefix()
    for _ in range(2):
        policy.learn(finished_pass(10))
        assert all(policy.should_offload(saved(at)) for at in range(10))
    policy.learn(finished_pass(10))
    decisions = [policy.should_offload(saved(at)) for at in range(10)]
    assert decisions == sorted(decisions, reverse=True), "a prefix"
    before = policy.explain()
    policy.learn(finished_pass(10, seconds=100.0))
    assert policy.explain() == before


@pytest.mark.parametrize("policy", ["auto", "all", "ssdtrain", lambda saved: saved.position > 2])
def test_every_policy_gives_the_same_gradients(policy, tmp_path):
    x = torch.randn(64, 64, requires_grad=True)

    def step() -> torch.Tensor:
        h = x * 2
        for _ in range(10):
            h = (h @ h / 8).tanh()
        return h.sum()

    expected = gradients_of([x], step)
    offload = sh.offload_activations(tmp_path, policy=policy, minimum_bytes=1024, budget="1MiB")
    for _ in range(5):
        with offload:
            require_equal(expected, gradients_of([x], step))
    assert offload.report().counts.offloaded > 0


class Net(torch.nn.Module):
    """Layers that save as much for every length, and layers that save more for a longer one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fixed = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(12))
        self.mixed = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.eye(64).requires_grad_() * 2
        for layer in self.fixed:
            table = layer(table).tanh()
        h = x @ table
        for layer in self.mixed:
            h = layer(h).tanh()
        return h.square().mean()


def batches_of(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, 64, generator=generator) for length in lengths]


@pytest.mark.parametrize("regions", [(), torch.nn.Linear])
def test_batches_of_every_length_fit_a_budget_that_fits_each_by_itself(regions, tmp_path):
    model, batches = Net(), batches_of([16, 400, 16, 200, 64, 16, 300])
    leaves = list(model.parameters())
    expected = [gradients_of(leaves, lambda batch=batch: model(batch)) for batch in batches]
    for policy in ("all", "auto"):
        offload = sh.offload.wrap(
            model, tmp_path, policy=policy, minimum_bytes=1024, budget="256KiB", regions=regions
        )
        for want, batch in zip(expected, batches, strict=True):
            require_equal(want, gradients_of(leaves, lambda batch=batch: model(batch)))
        offload.unwrap()
        counts = settled_report(offload).counts
        assert counts.peak_live_bytes <= 256 * 1024
    assert counts.kept > 0, "nothing was kept, so that nothing had to leave"
    assert regions or counts.kept_and_written > 0


def test_a_plan_is_for_steps_and_not_for_what_was_dropped(tmp_path, caplog):
    model, (batch, bad) = Net(), batches_of([64, 64])
    leaves = list(model.parameters())
    expected = gradients_of(leaves, lambda: model(batch))

    def offloading() -> sh.offload.ActivationOffload:
        return sh.offload_activations(tmp_path, minimum_bytes=1024, budget="256KiB")

    clean, spoiled = offloading(), offloading()
    for offload in (clean, spoiled):
        for _ in range(4):
            if offload is spoiled:
                with offload, pytest.raises(ZeroDivisionError):
                    print(model(bad) / (1 // 0))
                for _ in range(30):
                    with offload:
                        output = model(bad)  # the one before lives until this one is made
                with offload:
                    h = model(bad) * 2
                    h.register_hook(lambda _: 1 // 0)
                    with pytest.raises(ZeroDivisionError):
                        h.backward()
                del h
            with offload:
                require_equal(expected, gradients_of(leaves, lambda: model(batch)))
            with offload:
                require_equal(expected, gradients_of(leaves, lambda: model(batch)))
    del output
    assert spoiled.policy.plan is not None
    sizes = [[unit.size_bytes for unit in each.policy.plan.units] for each in (clean, spoiled)]
    assert sizes[0] == sizes[1]
    assert caplog.records == []
    assert settled_report(spoiled).live_bytes == 0


def test_a_loop_of_dropped_passes_leaves_nothing_behind(tmp_path):
    model, (batch,) = Net(), batches_of([16])
    offload = sh.offload_activations(tmp_path, minimum_bytes=1024, budget="256KiB")
    with offload:
        for _ in range(100):
            output = model(batch)
        longest = len(offload._order.current.sizes)
        del output
        model(batch)
    assert longest <= 256 + 30
    assert len(offload._order.waiting) == 1
