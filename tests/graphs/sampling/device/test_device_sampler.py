"""When a device draws, when the CPU does, and what is said of it; the device is pretended elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shorthaul.errors import CudaUnavailableError, SamplingError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.graphs import MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.graphs.sampling.device.device_sampler import WHAT, why_by_cpu
from shorthaul.settings import settings
from shorthaul.storage.testing.contract import in_child
from tests.graphs.sampled_graphs import random_graph, same_samples

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def _why(graph: RelationalGraph, fan_outs: list[Any], **how: Any) -> str | None:
    sampler = NeighborSampler(graph, fan_outs, **how)
    return why_by_cpu(sampler.fan_outs, sampler.rule)


def test_uniform_samples_are_the_devices_and_others_the_cpus() -> None:
    graph, two = random_graph(), random_graph(relations=2)
    for replace in (False, True):
        assert _why(graph, [-1, 0, 1024], replace=replace) is None
    assert _why(two, [3], disjoint=False) is None
    assert "a fan-out is more than 1,024" in (_why(graph, [1025]) or "")
    assert _why(graph, [10**9], replace=True) is None
    assert "relation" in (_why(two, [{0: 1, 1: 2}]) or "")
    assert "tree" in (_why(graph, [3], disjoint=True) or "")
    for how in (
        {"weights": torch.ones(600)},
        {"strategy": "labor"},
        {"edge_times": torch.arange(600)},
    ):
        assert "CPU" in (_why(graph, [3], **how) or "")


def test_what_cannot_be_a_device_is_refused() -> None:
    graph = random_graph()
    with pytest.raises(SamplingError, match=r"a sampler's device is a CUDA device.*'cpu'"):
        NeighborSampler(graph, [3], device="cpu")
    with pytest.raises(SamplingError, match="topology must be one of mapped, copied"):
        NeighborSampler(graph, [3], device="cuda", topology="lost")


@no_gpu
def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(CudaUnavailableError):
        NeighborSampler(random_graph(), [3], device="cuda")


@pytest.fixture
def there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nothing is drawn on here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("there_is_a_gpu")
def test_a_worker_draws_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: object())
    graph = random_graph()
    far = NeighborSampler(graph, [3, 2], seed=4, device="cuda:0")
    expected = NeighborSampler(graph, [3, 2], seed=4).sample([1, 2])
    for sampler in (far, pickle.loads(pickle.dumps(far))):
        assert sampler.device == torch.device("cuda:0")
        assert same_samples(sampler.sample([1, 2]), expected) == ""


def _message(work: Callable[[], object]) -> str:
    with pytest.raises(SamplingError) as raised:
        work()
    return str(raised.value)


@pytest.mark.usefixtures("there_is_a_gpu")
def test_a_loader_of_another_device_is_refused() -> None:
    graph = random_graph()
    sampler = NeighborSampler(graph, [2], device="cuda:0")
    told = _message(lambda: MiniBatchLoader(graph, fan_outs=sampler))
    assert "the sampler draws on cuda:0, but batches are wanted on the CPU" in told
    loader = MiniBatchLoader(graph, fan_outs=sampler, device="cpu")
    told = _message(lambda: next(iter(loader)))
    assert "batches are wanted on cpu.\n  Pass the loader device='cuda:0'" in told


@pytest.mark.usefixtures("there_is_a_gpu")
def test_where_generated_kernels_were_asked_for_the_cpu_does_not_take_over() -> None:
    graph = random_graph()
    with settings.override(kernels="generated"):
        trees = NeighborSampler(graph, [2], disjoint=True, device="cuda:0")
        plain = NeighborSampler(graph, [2], device="cuda:0")
        for told in (
            _message(lambda: trees.sample([0])),
            _message(lambda: plain.sample([0], exclude=[1])),
        ):
            assert "the device was asked for by name, but cannot draw these samples" in told
    assert not [each for each in taken_fallbacks() if each.what == WHAT]


@pytest.mark.usefixtures("there_is_a_gpu")
def test_a_forked_child_draws_by_the_cpu() -> None:
    graph = random_graph()
    far = NeighborSampler(graph, [3, 2], seed=4, device="cuda:0")
    expected = NeighborSampler(graph, [3, 2], seed=4).sample([1, 2])

    def work() -> None:
        assert same_samples(far.sample([1, 2]), expected) == ""

    in_child(work)
