from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch

from shorthaul.errors import EngineUnavailableError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.offload.api import offload_activations, open_pool
from shorthaul.offload.policy.policy import OffloadAll, OffloadChosen, OffloadPlanned, OffloadPrefix
from shorthaul.storage import BufferPool


@pytest.mark.parametrize(
    ("knobs", "policy"),
    [
        ({}, OffloadAll),
        ({"budget": "1MiB"}, OffloadPlanned),
        ({"budget": "1MiB", "policy": "all"}, OffloadAll),
        ({"policy": "ssdtrain"}, OffloadPrefix),
        ({"policy": lambda _: True}, OffloadChosen),
    ],
)
def test_each_policy_by_its_knobs(knobs, policy, tmp_path):
    assert type(offload_activations(tmp_path, **knobs).policy) is policy


def test_windows_take_half_and_a_quarter_of_the_budget_at_most(tmp_path):
    store = offload_activations(tmp_path, budget="8MiB").store
    assert (store.in_flight_bytes, store.prefetch_bytes) == (4 * 2**20, 2 * 2**20)
    store = offload_activations(tmp_path, budget="8MiB", in_flight="3MiB", prefetch="1MiB").store
    assert (store.in_flight_bytes, store.prefetch_bytes) == (3 * 2**20, 2**20)


def test_the_error_of_lossy_gradients_is_measured_and_reported(tmp_path):
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()), torch.randn(64, 64)

    def step() -> torch.Tensor:
        loss = model(x * 2).square().mean()
        loss.backward()
        return loss

    step()
    before = [each.grad.clone() for each in model.parameters()]
    state = torch.get_rng_state()
    lossy = offload_activations(tmp_path, minimum_bytes=1024, compress="int8")
    error = lossy.measure_gradient_error(step, model)
    assert 1e-5 < error < 0.05
    assert lossy.report().gradient_error == error
    assert lossy.report().counts.worst_activation_error > 0
    assert all(
        torch.equal(was, each.grad) for was, each in zip(before, model.parameters(), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)
    exact = offload_activations(tmp_path, minimum_bytes=1024, compress="mask")
    assert exact.measure_gradient_error(step, model) == 0


@pytest.mark.parametrize(
    "knobs",
    [
        {"minimum_bytes": "much"},
        {"memory": "much"},
        {"endurance": {"daily": "much"}},
        {"spread": "wide"},
        {"compress": "zip"},
        {"directory": ["DIRECTORY", "/dev/shm"]},
        {"engine": "none such"},
        {"directory": []},
        {"directory": "DIRECTORY/missing"},
    ],
    ids=str,
)
def test_refused_knobs_leave_nothing_open(knobs, tmp_path):
    given = knobs.get("directory", "DIRECTORY")
    given = [given] if isinstance(given, str) else given
    directory = [each.replace("DIRECTORY", str(tmp_path)) for each in given]

    def refuse() -> None:
        with pytest.raises((ValueError, OSError, EngineUnavailableError)):
            offload_activations(**{**knobs, "directory": directory})

    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    refuse()
    gc.collect()
    gc.disable()  # what is closed must not wait for the garbage collector
    try:
        before = held()
        for _ in range(5):
            refuse()
        assert held() == before
    finally:
        gc.enable()


def test_an_empty_list_of_directories_is_refused_by_name():
    with pytest.raises(ValueError, match="directory must be a directory or several"):
        offload_activations([])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_cudas_gets_pageable_buffers_and_that_is_said(monkeypatch, tmp_path):
    assert type(open_pool(4096)) is BufferPool
    assert offload_activations(tmp_path).store.devices is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    offload = offload_activations(tmp_path)
    assert type(offload.store.pool) is BufferPool
    assert offload.store.devices is not None
    fallbacks = [each for each in taken_fallbacks() if each.what == "pinned buffers"]
    assert any("without CUDA" in each.reason for each in fallbacks)
