"""The throttled engine keeps the contract, and its time is that of the disk it imitates."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from shorthaul.storage import (
    MemoryEngine,
    Priority,
    ThreadEngine,
    ThrottledEngine,
    open_file,
    throttled_engine,
)
from shorthaul.storage.testing.contract import MEBIBYTE, PATIENCE_SECONDS, paused
from tests.contracts.storage_engine_contract import StorageEngineContract


class TestThrottledThreads(StorageEngineContract):
    def open_engine(self, **options: object) -> ThrottledEngine:
        return ThrottledEngine(ThreadEngine(), 2e9, 1e-5, **options)  # type: ignore[arg-type]


class TestThrottledMemory(StorageEngineContract):
    is_on_disk = False

    def open_engine(self, **options: object) -> ThrottledEngine:
        return ThrottledEngine(MemoryEngine(), 2e9, **options)  # type: ignore[arg-type]


def seconds_of(engine: ThrottledEngine, work) -> float:
    started = time.monotonic()
    work(engine)
    return time.monotonic() - started


def test_bytes_take_their_time(tmp_path: Path) -> None:
    with throttled_engine(MemoryEngine(), 50e6) as engine, open_file(tmp_path, "scratch") as file:
        tickets = [engine.write(file, MEBIBYTE * i, bytes(MEBIBYTE)) for i in range(5)]
        started = time.monotonic()
        for ticket in tickets:
            ticket.wait(PATIENCE_SECONDS)
        # Never faster than the disk: how much slower is up to the machine.
        assert time.monotonic() - started >= 5 * MEBIBYTE / 50e6 - 0.02


def test_a_batch_takes_its_time(tmp_path: Path) -> None:
    with throttled_engine(MemoryEngine(), 50e6) as engine, open_file(tmp_path, "scratch") as file:
        engine.inner.write(file, 0, bytes(1024 * 2048)).wait(PATIENCE_SECONDS)
        places = np.arange(1024) * 2048
        started = time.monotonic()
        engine.read_many(file, places, 2048, bytearray(1024 * 2048), places).wait(PATIENCE_SECONDS)
        assert time.monotonic() - started >= 1024 * 2048 / 50e6 - 0.01


def test_latencies_overlap(tmp_path: Path) -> None:
    with (
        throttled_engine(MemoryEngine(), 1e9, latency_seconds=0.1) as engine,
        open_file(tmp_path, "scratch") as file,
    ):
        started = time.monotonic()
        for ticket in [engine.write(file, 0, b"x") for _ in range(16)]:
            ticket.wait(PATIENCE_SECONDS)
        spent = time.monotonic() - started
        assert 0.1 <= spent < 16 * 0.1


def test_an_urgent_read_does_not_wait_behind_a_long_write(tmp_path: Path) -> None:
    order: list[str] = []
    with throttled_engine(MemoryEngine(), 100e6) as engine, open_file(tmp_path, "scratch") as file:
        engine.inner.write(file, 0, bytes(4096)).wait(PATIENCE_SECONDS)
        with paused(engine):
            writing = engine.write(file, 0, bytes(20 * MEBIBYTE))
            writing.add_done_callback(lambda _: order.append("write"))
        reading = engine.read(file, 0, bytearray(4096), priority=Priority.DEMAND)
        reading.add_done_callback(lambda _: order.append("read"))
        writing.wait(PATIENCE_SECONDS)
        reading.wait(PATIENCE_SECONDS)
    assert order == ["read", "write"]


@pytest.mark.parametrize(("rate", "latency"), [(0, 0), (-1, 0), (1e6, -1)])
def test_refuses_a_disk_that_cannot_be(rate: float, latency: float) -> None:
    inner = MemoryEngine()
    with inner, pytest.raises(ValueError, match="must be positive"):
        throttled_engine(inner, rate, latency)
