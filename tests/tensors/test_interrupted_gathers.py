"""Ctrl-C at any line of a gather arrives, leaves nothing behind, and the next gather is right."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.storage import ThreadEngine, UringEngine
from shorthaul.tensors.tables.disk.row_cache import RowCache
from tests.injected_interrupts import find_places, obeys_after, run_interrupted

CACHES = ("sieve", "belady")
ROWS, WIDTH = 3000, 24
EVERY = 7  # of the lines, in the quick tests


class Gathers:
    """A table, in memory or on disk, and questions whose answers are known."""

    def __init__(self, directory: Any, kind: str, engine: Any = None) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(-9, 9, (ROWS, WIDTH), generator=generator).float()
        self.ids = torch.randint(0, ROWS, (700,), generator=generator)
        self.pointers = torch.arange(0, 701, 7)
        self.weight = torch.randint(-3, 3, (5, WIDTH), generator=generator).float()
        self.rows, self.engine = rows, engine
        if kind == "memory":
            self.table = sh.unified(rows)
        else:
            path = directory / "rows.safetensors"
            quantize = "bfloat16" if kind == "packed" else None
            sh.save_features(path, rows, quantize=quantize, progress=False)
            cache = {"cache": kind, "cache_bytes": "64KiB"} if kind in CACHES else {}
            self.table = sh.open(path, engine=engine, **cache)
            self.table.table._piece_bytes = 2**14  # many pieces: a gather comes through all states

    def rows_of(self) -> torch.Tensor:
        return self.table[self.ids]

    def sums(self) -> torch.Tensor:
        return self.table.gather_reduce(self.pointers, self.ids, "sum")

    def products(self) -> torch.Tensor:
        return self.table.gather_linear(self.ids, self.weight)

    def prefetched(self) -> torch.Tensor:
        first, second = self.table.prefetch(self.ids), self.table.prefetch(self.ids.flip(0))
        return first.wait() + second.wait().flip(0)

    def into(self) -> torch.Tensor:
        out = torch.full((len(self.ids), WIDTH), float("nan"))
        self.table.gather(self.ids, out=out)
        return out

    def require_right(self, place: object = None) -> None:
        asked = self.rows[self.ids]
        assert torch.equal(self.rows_of(), asked), place
        assert torch.equal(self.into(), asked), place
        assert torch.equal(self.prefetched(), 2 * asked), place
        assert torch.equal(self.sums(), asked.view(-1, 7, WIDTH).sum(1)), place
        assert torch.equal(self.products(), asked @ self.weight.t()), place

    def require_nothing_left(self) -> None:
        if not self.table.has_memory:
            gc.collect()
            pool = self.table.table._pool
            until(lambda: pool.in_use_bytes == 0)
            until(lambda: self.table.table.engine.stats().in_flight_bytes == 0)


def until(is_so: Callable[[], bool]) -> None:
    stop = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < stop
        time.sleep(0.002)


WORKS = ("rows_of", "into", "prefetched", "sums", "products")
KINDS = ("memory", "disk", "packed", *CACHES)


def interrupt_each_line(case: Gathers, every: int) -> None:
    case.require_right()
    arrived = 0
    for name in WORKS:
        work = getattr(case, name)
        for place in find_places(work, "tensors/", "storage/", "jit/")[::every]:
            arrived += run_interrupted(work, place)
            assert torch.equal(case.rows_of(), case.rows[case.ids]), (name, place)
        case.require_right(name)
    assert arrived > 3
    case.require_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
def test_some_lines(tmp_path, kind):
    interrupt_each_line(Gathers(tmp_path, kind), EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [UringEngine, ThreadEngine], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KINDS)
def test_each_line(tmp_path, kind, engine):
    with engine() as opened:
        interrupt_each_line(Gathers(tmp_path, kind, opened), 1)


@pytest.mark.parametrize("kind", ["disk", "packed", "sieve"])
def test_a_ticket_that_was_interrupted_can_be_waited_for_again(tmp_path, kind):
    case = Gathers(tmp_path, kind)
    ticket = None

    def work() -> None:
        nonlocal ticket
        ticket = case.table.prefetch(case.ids)
        ticket.wait()

    work()
    interrupted = 0
    for place in find_places(work, "tensors/")[::3]:
        ticket = None
        interrupted += run_interrupted(work, place)
        if ticket is not None:
            assert torch.equal(ticket.wait(), case.rows[case.ids]), place
    assert interrupted > 3


def test_a_cache_never_has_a_row_that_was_not_copied(tmp_path):
    case = Gathers(tmp_path, "sieve")
    table = case.table.table

    def work() -> None:
        row_bytes = table.layout.row_bytes
        table.cache = RowCache("sieve", budget_bytes="64KiB", row_bytes=row_bytes)
        case.rows_of()

    work()
    interrupted = 0
    for place in find_places(work, "tensors/tables/disk/")[::2]:
        interrupted += run_interrupted(work, place)
        assert torch.equal(case.rows_of(), case.rows[case.ids]), place
    assert interrupted > 10


@pytest.mark.parametrize("kind", ["memory", "sieve"])
def test_signals_at_random_moments_all_arrive(tmp_path, kind):
    case = Gathers(tmp_path, kind)
    case.require_right()
    for delay in torch.rand(8, generator=torch.Generator().manual_seed(1)).tolist():
        assert obeys_after(0.03 * delay, case.rows_of), "the interrupt was lost"
        case.require_right()
    case.require_nothing_left()
