"""Ctrl-C at any moment of a step arrives, leaves nothing behind, and the next step is right."""

from __future__ import annotations

import gc

import pytest
import torch

from shorthaul.offload.context import ActivationOffload
from tests.injected_interrupts import find_places, obeys_after, run_interrupted
from tests.offload.cases import leaf
from tests.offload.keep_all import gradients_of, require_equal, settled_report, small_offload

EVERY = 29  # of the lines, in the quick tests


class Interrupted:
    """A step that may be interrupted, and what it must give when it is not."""

    def __init__(self, directory, **knobs) -> None:
        self.x = leaf(32, 32)
        self.expected = gradients_of([self.x], self.forward)
        self.offload = small_offload(directory, prefetch="64KiB", **knobs)
        self.engines = (self.offload.store.reads.engine, self.offload.store.writes.engine)

    def forward(self) -> torch.Tensor:
        h = self.x * 2
        for _ in range(3):
            h = (h @ h.t()).tanh()
        return (h * torch.ones(32, 32)).sum()

    def step(self) -> None:
        self.x.grad = None
        with self.offload:
            loss = self.forward()
            self.offload.store.wait_until_idle()
            loss.backward()

    def require_right(self, place: object = None) -> None:
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None, place
        self.step()
        require_equal(self.expected, [self.x.grad])

    def require_nothing_left(self) -> None:
        gc.collect()
        report = settled_report(self.offload)
        assert (report.live_bytes, report.disk_bytes) == (0, 0)
        store = self.offload.store
        assert (store.writes.in_flight_bytes, store.reads.loading_bytes) == (0, 0)
        assert (store._saved_bytes, store._kept_bytes, store._farewells) == (0, 0, {})
        assert all(engine.stats().in_flight_bytes == 0 for engine in self.engines)


def interrupt_each_line(case: Interrupted, every: int) -> None:
    case.step()
    arrived = 0
    for place in find_places(case.step, "offload/", "storage/")[::every]:
        if place[0] == "offload/context.py" and place[1] in UNSEEN_LINES:
            continue
        arrived += run_interrupted(case.step, place)
        case.require_right(place)
    assert arrived > 100 / every
    case.require_nothing_left()


def lines_of(method) -> list[int]:
    return sorted({line for *_, line in method.__code__.co_lines() if line})


# Between `__enter__` and the block, and between the block and `__exit__`, no Python can catch a
# signal: the hooks of plain PyTorch stay behind there too.
UNSEEN_LINES = {
    *lines_of(ActivationOffload.__exit__)[:2],
    lines_of(ActivationOffload.__enter__)[-1],
}


@pytest.mark.parametrize("knobs", [{}, {"budget": "256KiB"}], ids=str)
def test_some_lines(knobs, tmp_path):
    interrupt_each_line(Interrupted(tmp_path, **knobs), EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{}, {"budget": "256KiB"}, {"compress": "mask"}], ids=str)
def test_each_line(knobs, tmp_path):
    interrupt_each_line(Interrupted(tmp_path, **knobs), 1)


def test_signals_at_random_moments_all_arrive(tmp_path):
    case = Interrupted(tmp_path)
    case.step()
    delays = torch.rand(6, generator=torch.Generator().manual_seed(1)).tolist()
    for delay in delays:
        assert obeys_after(0.05 * delay, case.step), "the interrupt was lost"
        while torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            torch._C._autograd._pop_saved_tensors_default_hooks()  # the moment that no Python sees
        case.require_right()
    case.require_nothing_left()
