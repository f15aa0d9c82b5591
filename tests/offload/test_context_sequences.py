"""Whatever steps come in whatever order: the same bits, within the budget, and nothing left.

Steps of every length are kept waiting, dropped, repeated, broken off by errors and by Ctrl-C, in
forward and in backward, while plans are made and given up and processes are forked.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import signal
import tempfile
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.forked_children import in_child
from tests.offload.keep_all import require_equal, settled_report, small_offload

WIDTH, LAYERS, BUDGET_BYTES = 64, 6, 384 * 1024
ROWS = (8, 64, 100, 256)
MOST_WAITING = 3

Event = Callable[[int], None]


class Deep(torch.nn.Module):
    """Layers that tell where they are; what autograd saves is a matrix for each of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, forward: Event, backward: Event) -> torch.Tensor:
        table = self.layers[0].weight * 2  # of the same size in every step
        h = x @ table
        for index, layer in enumerate(self.layers):
            forward(index)
            h = (layer(h) @ table.t() / 4).tanh()
            h.register_hook(functools.partial(lambda index, _: backward(index), index))
        return h.square().mean()


def nothing(_: int) -> None:
    """A step that is not disturbed."""


def breaking(at: int, *, is_signal: bool) -> Event:
    """Breaks a step off at one of its layers."""

    def event(index: int) -> None:
        if index == at:
            if is_signal:
                signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError(f"layer {at} fails")

    return event


@functools.cache
def model() -> Deep:
    return Deep()


@functools.cache
def batch(rows: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


@functools.cache
def expected(rows: int) -> tuple[torch.Tensor, ...]:
    loss = model()(batch(rows), nothing, nothing)
    return torch.autograd.grad(loss, list(model().parameters()))


class OffloadMachine(RuleBasedStateMachine):
    """One context, and the graphs that wait for their backward pass."""

    knobs: ClassVar[dict[str, object]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.offload = small_offload(self.directory.name, budget=BUDGET_BYTES, **self.knobs)
        self.waiting: list[tuple[int, torch.Tensor]] = []

    def begin(self, rows: int, forward: Event = nothing, backward: Event = nothing) -> torch.Tensor:
        with self.offload:
            return model()(batch(rows), forward, backward)

    @staticmethod
    def finish(rows: int, loss: torch.Tensor, *, is_kept: bool = False) -> None:
        got = torch.autograd.grad(loss, list(model().parameters()), retain_graph=is_kept)
        require_equal(expected(rows), got)

    def take_step(self, rows: int) -> None:
        with self.offload:
            self.finish(rows, model()(batch(rows), nothing, nothing))

    def require_nothing_left(self) -> None:
        report = settled_report(self.offload)
        assert (report.live_bytes, report.disk_bytes) == (0, 0)
        assert self.offload.store.writes.in_flight_bytes == 0

    @rule(rows=st.sampled_from(ROWS), times=st.integers(1, 3))
    def step(self, rows: int, times: int) -> None:
        for _ in range(times):
            self.take_step(rows)

    @precondition(lambda self: len(self.waiting) < MOST_WAITING)
    @rule(rows=st.sampled_from(ROWS))
    def begin_one(self, rows: int) -> None:
        self.waiting.append((rows, self.begin(rows)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), is_kept=st.booleans(), is_inside=st.booleans())
    def finish_one(self, data: st.DataObject, is_kept: bool, is_inside: bool) -> None:
        at = data.draw(st.integers(0, len(self.waiting) - 1))
        with self.offload if is_inside else contextlib.nullcontext():
            self.finish(*self.waiting[at], is_kept=is_kept)
        if not is_kept:
            del self.waiting[at]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def drop_one(self, data: st.DataObject) -> None:
        del self.waiting[data.draw(st.integers(0, len(self.waiting) - 1))]

    @rule(rows=st.sampled_from(ROWS), times=st.integers(1, 4))
    def drop_some(self, rows: int, times: int) -> None:
        for _ in range(times):
            loss = self.begin(rows)
        del loss

    @rule(
        rows=st.sampled_from(ROWS),
        at=st.integers(0, LAYERS - 1),
        is_signal=st.booleans(),
        is_forward=st.booleans(),
    )
    def break_off(self, rows: int, at: int, is_signal: bool, is_forward: bool) -> None:
        event = breaking(at, is_signal=is_signal)
        kind = KeyboardInterrupt if is_signal else ZeroDivisionError
        if is_forward:
            with pytest.raises(kind):
                self.begin(rows, forward=event)
        else:
            loss = self.begin(rows, backward=event)
            with pytest.raises(kind):
                self.finish(rows, loss)

    @rule(here=st.sampled_from(ROWS), there=st.sampled_from(ROWS))
    def fork(self, here: int, there: int) -> None:
        def go_on() -> None:
            while self.waiting:
                self.finish(*self.waiting.pop())
            self.take_step(there)
            self.is_within_the_budget()
            self.require_nothing_left()

        gc.collect()  # in the child it would copy all that the two share
        in_child(go_on, meanwhile=lambda: self.take_step(here))

    @rule()
    def look(self) -> None:
        assert self.offload.report().refusal is None

    @invariant()
    def is_within_the_budget(self) -> None:
        assert self.offload.store.live_bytes <= BUDGET_BYTES
        assert self.offload.store.counts.peak_live_bytes <= BUDGET_BYTES

    def teardown(self) -> None:
        self.waiting.clear()
        gc.collect()
        self.require_nothing_left()
        self.offload.close()
        self.directory.cleanup()


class KeepingMachine(OffloadMachine):
    """The same where everything is kept at first, so that nearly all of it has to leave later."""

    knobs: ClassVar[dict[str, object]] = {"policy": lambda _: False}


@pytest.fixture(autouse=True)
def _one_thread():
    # A forked child cannot use the threads that OpenMP started in its parent.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(machine: type[OffloadMachine], examples: int, steps: int) -> None:
    limits = hypothesis_settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    run_state_machine_as_test(machine, settings=limits)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("machine", [OffloadMachine, KeepingMachine])
def test_steps_in_any_order(machine):
    run(machine, examples=8, steps=12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("machine", [OffloadMachine, KeepingMachine])
def test_many_steps_in_any_order(machine):
    run(machine, examples=150, steps=40)
