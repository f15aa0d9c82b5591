"""Pinned buffers are registered once, and unregistered before their memory goes."""

import gc

import pytest
import torch

from shorthaul.errors import CudaUnavailableError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.offload.device.pinned_pool import WHOLE_REGION_BYTES, PinnedBufferPool, open_registry
from shorthaul.storage import MemoryEngine, open_file
from shorthaul.tensors.cuda.registration import HostRegistry
from tests.tensors.fake_cuda import FakeCudaRuntime

KIBIBYTE = 1024


def _pool(runtime: FakeCudaRuntime, budget: str = "64KiB") -> PinnedBufferPool:
    return PinnedBufferPool(budget, HostRegistry(runtime, chunk_bytes=WHOLE_REGION_BYTES))


def test_a_region_is_registered_when_it_is_first_handed_out() -> None:
    runtime = FakeCudaRuntime()
    with _pool(runtime) as pool:
        buffer = pool.take(8 * KIBIBYTE)
        assert runtime.ranges == {buffer.address: buffer.address + 8 * KIBIBYTE}
        buffer.release()
        again = pool.take(8 * KIBIBYTE)
        assert again.address == buffer.address
        assert [each[0] for each in runtime.calls] == ["register"]


def test_a_region_that_goes_is_unregistered_first() -> None:
    runtime = FakeCudaRuntime()
    with _pool(runtime) as pool:
        pool.take(40 * KIBIBYTE).release()
        buffer = pool.take(64 * KIBIBYTE)  # needs the room of the first
        assert runtime.ranges == {buffer.address: buffer.address + 64 * KIBIBYTE}
    tensor = buffer.tensor(torch.uint8, (10,))
    buffer.release()
    tensor.fill_(1)  # the pool is closed, and the memory is still there
    assert runtime.registered_bytes == 64 * KIBIBYTE
    del tensor, buffer, pool
    gc.collect()
    assert runtime.ranges == {}


def test_registered_pages_are_not_moved() -> None:
    runtime = FakeCudaRuntime()
    with _pool(runtime) as pool:
        pool.take(8 * KIBIBYTE).release()
        pool.trim(0)
        assert runtime.ranges == {}
        assert not pool.moves_pages


def test_memory_that_cuda_refuses_is_pageable_and_said() -> None:
    runtime = FakeCudaRuntime(lock_limit_bytes=10 * KIBIBYTE)
    with _pool(runtime) as pool:
        pinned = pool.take(8 * KIBIBYTE)
        for _ in range(2):  # refused once, not asked again
            with pool.take(32 * KIBIBYTE) as buffer:
                buffer.memory[:] = 1
        assert list(runtime.ranges) == [pinned.address]
        assert len(runtime.calls) == 2
        assert runtime.last_error == 0
    reasons = [each.reason for each in taken_fallbacks() if each.what == "pinned buffers"]
    assert any("out of memory" in each for each in reasons)


def test_the_disk_takes_pinned_buffers(tmp_path) -> None:
    with (
        _pool(FakeCudaRuntime()) as pool,
        MemoryEngine() as engine,
        open_file(tmp_path, "scratch") as file,
    ):
        buffer = pool.take(4096)
        buffer.memory[:] = 7
        engine.write(file, 0, buffer).wait()
        back = pool.take(4096)
        engine.read(file, 0, back).wait()
        assert (back.memory == 7).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_there_is_no_pinned_memory() -> None:
    with pytest.raises(CudaUnavailableError):
        open_registry()
