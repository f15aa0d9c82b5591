"""Pages are mapped once, counted, and unmapped before their memory goes; faults leave nothing."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from shorthaul.errors import CudaMappingError
from shorthaul.storage.testing.contract import in_child
from shorthaul.tensors.cuda.registration import HostRegistry, Lease, advise_on
from shorthaul.tensors.cuda.runtime import (
    MAPPED,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    PORTABLE,
    RUNTIME_UNLOADING,
)
from tests.tensors.fake_cuda import FakeCudaRuntime

PAGE = 4096
CUDA = torch.device("cuda", 0)


class Memory:
    """Stands for whoever owns memory; what is mapped keeps it."""


def _registry(runtime: FakeCudaRuntime, chunk_pages: int = 1024) -> HostRegistry:
    return HostRegistry(runtime, chunk_bytes=chunk_pages * PAGE, page_bytes=PAGE)


def test_whole_pages_are_registered_and_the_address_is_the_devices() -> None:
    runtime = FakeCudaRuntime(shift_bytes=2**40)
    registry = _registry(runtime)
    lease = registry.lease(10 * PAGE + 100, PAGE, Memory())
    assert runtime.calls == [("register", 10 * PAGE, 2 * PAGE)]
    assert lease.pointer == 2**40 + 10 * PAGE + 100
    lease.release()
    lease.release()
    assert runtime.ranges == {}
    with pytest.raises(CudaMappingError, match="it was released"):
        _ = lease.pointer


def test_chunks_are_multiples_of_a_page() -> None:
    runtime = FakeCudaRuntime()
    lease = _registry(runtime, chunk_pages=4).lease(0, 10 * PAGE, Memory())
    assert runtime.ranges == {0: 4 * PAGE, 4 * PAGE: 8 * PAGE, 8 * PAGE: 10 * PAGE}
    del lease
    assert runtime.ranges == {}
    with pytest.raises(ValueError, match="multiple of a page"):
        HostRegistry(runtime, chunk_bytes=PAGE + 1, page_bytes=PAGE)


def test_neighbors_share_a_page_without_registering_it_twice() -> None:
    runtime = FakeCudaRuntime()
    registry = _registry(runtime)
    first = registry.lease(100, PAGE, Memory())
    second = registry.lease(PAGE + 200, 3 * PAGE, Memory())  # begins in the last page of the first
    inside = registry.lease(PAGE + 300, 10, Memory())
    assert registry.ranges == ((0, 2 * PAGE, 3), (2 * PAGE, 5 * PAGE, 1))
    first.release()
    second.release()
    assert registry.ranges == ((0, 2 * PAGE, 1),)
    inside.release()
    assert registry.registered_bytes == 0
    assert runtime.ranges == {}


def test_a_gap_between_known_chunks_is_filled() -> None:
    runtime = FakeCudaRuntime()
    registry = _registry(runtime)
    islands = [registry.lease(at * PAGE, PAGE, Memory()) for at in (2, 5)]
    whole = registry.lease(0, 8 * PAGE, Memory())
    assert [start // PAGE for start, _, _ in registry.ranges] == [0, 2, 3, 5, 6]
    assert all(
        leases == (2 if start // PAGE in (2, 5) else 1) for start, _, leases in registry.ranges
    )
    del whole
    assert sorted(runtime.ranges) == [2 * PAGE, 5 * PAGE]
    del islands


def test_what_others_registered_is_used_and_left() -> None:
    runtime = FakeCudaRuntime()
    runtime.register(3 * PAGE, 2 * PAGE, PORTABLE | MAPPED)
    registry = _registry(runtime)
    lease = registry.lease(PAGE, 6 * PAGE, Memory())
    assert runtime.ranges == {PAGE: 3 * PAGE, 3 * PAGE: 5 * PAGE, 5 * PAGE: 7 * PAGE}
    assert registry.registered_bytes == 4 * PAGE
    assert runtime.last_error == 0, "PyTorch would take it for an error of its next kernel"
    lease.release()
    assert runtime.ranges == {3 * PAGE: 5 * PAGE}


def test_memory_goes_only_after_it_is_unmapped_and_the_device_is_done() -> None:
    runtime = FakeCudaRuntime()
    memory = Memory()
    weakref.finalize(memory, runtime.calls.append, ("freed",))
    lease = _registry(runtime).lease(0, PAGE, memory)
    lease.devices.add(CUDA)
    del memory
    gc.collect()
    assert runtime.calls == [("register", 0, PAGE)]
    del lease
    gc.collect()
    assert runtime.calls[1:] == [("synchronize", "cuda:0"), ("unregister", 0), ("freed",)]


def test_the_limit_on_locked_memory_leaves_nothing_registered() -> None:
    runtime = FakeCudaRuntime(lock_limit_bytes=5 * PAGE)
    registry = _registry(runtime, chunk_pages=2)
    with pytest.raises(CudaMappingError, match="out of memory") as raised:
        registry.lease(0, 8 * PAGE, Memory())
    assert "ulimit -l, now" in str(raised.value)
    assert runtime.ranges == {}
    assert registry.ranges == ()
    assert runtime.last_error == 0
    assert registry.lease(0, 4 * PAGE, Memory()).pointer == 0


@pytest.mark.parametrize(
    ("code", "advice"),
    [(OPERATING_SYSTEM, "limit on locked memory"), (NOT_SUPPORTED, "copied"), (1, "doctor")],
)
def test_each_refusal_says_what_to_do(code: int, advice: str) -> None:
    runtime = FakeCudaRuntime()
    runtime.answer_next("register", code)
    with pytest.raises(CudaMappingError, match=f"CUDA answers {code}") as raised:
        _registry(runtime).lease(0, PAGE, Memory())
    assert advice in str(raised.value)
    assert advice in advise_on(code)


def test_a_platform_without_device_addresses_leaves_nothing_registered() -> None:
    runtime = FakeCudaRuntime()
    runtime.answer_next("device_pointer", NOT_SUPPORTED)
    with pytest.raises(CudaMappingError, match="find the device's address"):
        _registry(runtime).lease(0, PAGE, Memory())
    assert runtime.ranges == {}


class ScatteringRuntime(FakeCudaRuntime):
    """As where a device does not use the host's addresses: each registration lies elsewhere."""

    def device_pointer(self, address: int) -> tuple[int, int]:
        code, pointer = super().device_pointer(address)
        return code, pointer + 2**30 * len(self.ranges)


def test_pages_that_the_device_sees_apart_are_refused() -> None:
    runtime = ScatteringRuntime()
    with pytest.raises(CudaMappingError, match="in one piece"):
        _registry(runtime, chunk_pages=2).lease(0, 4 * PAGE, Memory())
    assert runtime.ranges == {}
    assert _registry(runtime).lease(0, 4 * PAGE, Memory()).pointer == 2**30


def test_memory_that_cuda_does_not_unmap_is_never_freed(caplog: pytest.LogCaptureFixture) -> None:
    runtime = FakeCudaRuntime()
    registry = _registry(runtime)
    memory = Memory()
    alive = weakref.ref(memory)
    lease = registry.lease(0, PAGE, memory)
    runtime.answer_next("unregister", 999)
    del memory, lease
    gc.collect()
    assert "CUDA does not unmap 4.0 KiB" in caplog.text
    assert alive() is not None
    assert registry.ranges == ((0, PAGE, 0),)
    again = registry.lease(0, PAGE, Memory())  # registered already, so not again
    assert runtime.calls.count(("register", 0, PAGE)) == 1
    del again
    gc.collect()
    assert alive() is None
    assert runtime.ranges == {}


def test_failing_to_undo_is_remembered_too() -> None:
    runtime = FakeCudaRuntime(lock_limit_bytes=2 * PAGE)
    registry = _registry(runtime, chunk_pages=2)
    memory = Memory()
    alive = weakref.ref(memory)
    runtime.answer_next("unregister", 999)
    with pytest.raises(CudaMappingError):
        registry.lease(0, 4 * PAGE, memory)
    del memory
    gc.collect()
    assert alive() is not None
    assert registry.ranges == ((0, 2 * PAGE, 0),)


@pytest.mark.parametrize("code", [RUNTIME_UNLOADING, NOT_REGISTERED])
def test_memory_that_is_unmapped_anyway_is_let_go(code: int) -> None:
    runtime = FakeCudaRuntime()
    registry = _registry(runtime)
    lease = registry.lease(0, PAGE, Memory())
    runtime.answer_next("unregister", code)
    del lease
    assert registry.ranges == ()


def test_a_lease_that_ends_while_another_begins_is_settled_by_it() -> None:
    runtime = FakeCudaRuntime()
    registry = _registry(runtime)
    leases = [registry.lease(0, PAGE, Memory())]
    plain = runtime.register

    def register(address: int, length_bytes: int, flags: int) -> int:
        leases.clear()  # as the garbage collector may, inside the registry
        return plain(address, length_bytes, flags)

    runtime.register = register  # type: ignore[method-assign]
    other = registry.lease(10 * PAGE, PAGE, Memory())
    assert registry.ranges == ((10 * PAGE, 11 * PAGE, 1),)
    other.release()


def test_a_forked_child_unregisters_nothing() -> None:
    runtime = FakeCudaRuntime()
    registry = _registry(runtime)
    lease = registry.lease(0, PAGE, Memory())
    called = len(runtime.calls)

    def work() -> None:
        assert registry.ranges == ()
        with pytest.raises(CudaMappingError, match="forked"):
            _ = lease.pointer
        lease.release()
        assert len(runtime.calls) == called

    in_child(work)
    assert lease.pointer == 0
    lease.release()
    assert runtime.ranges == {}


class Registrations(RuleBasedStateMachine):
    """Leases come and go in any order, also where CUDA refuses: nothing twice, nothing left."""

    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.runtime = FakeCudaRuntime(lock_limit_bytes=40 * PAGE)
        # Somebody else's, from before.
        self.runtime.register(20 * PAGE, 2 * PAGE, PORTABLE | MAPPED)
        self.registry = _registry(self.runtime, chunk_pages=3)
        self.live: dict[Lease, tuple[int, int]] = {}

    @rule(
        target=leases,
        address=st.integers(0, 60 * PAGE),
        length_bytes=st.integers(1, 12 * PAGE),
        refusal=st.sampled_from([0, 0, 0, NOT_SUPPORTED]),
    )
    def begin(self, address: int, length_bytes: int, refusal: int) -> Lease | None:
        before = dict(self.runtime.ranges)
        if refusal:
            self.runtime.answer_next("register", 0, refusal)
        try:
            lease = self.registry.lease(address, length_bytes, Memory())
        except CudaMappingError:
            assert self.runtime.ranges == before
            return None
        finally:
            self.runtime.answers.clear()
        assert lease.pointer == address
        self.live[lease] = (address, address + length_bytes)
        return lease

    @rule(lease=consumes(leases))
    def end(self, lease: Lease | None) -> None:
        if lease is not None:
            del self.live[lease]
            lease.release()

    @invariant()
    def every_lease_is_mapped(self) -> None:
        pages = {
            page
            for start, stop in self.runtime.ranges.items()
            for page in range(start // PAGE, stop // PAGE)
        }
        needed = {
            page
            for start, stop in self.live.values()
            for page in range(start // PAGE, -(-stop // PAGE))
        }
        assert needed <= pages
        assert self.runtime.last_error == 0

    @invariant()
    def nothing_is_counted_twice(self) -> None:
        ranges = self.registry.ranges
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
        for start, stop, leases in ranges:
            users = [each for each in self.live.values() if each[0] < stop and start < each[1]]
            assert leases >= len(users) > 0

    def teardown(self) -> None:
        for lease in self.live:
            lease.release()
        assert self.registry.ranges == ()
        assert self.runtime.ranges == {20 * PAGE: 22 * PAGE}


TestRegistrations = Registrations.TestCase
TestRegistrations.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_host_may_write_while_a_loader_maps_more() -> None:
    registry = HostRegistry(FakeCudaRuntime())
    kept: list[Lease] = []
    errors: list[BaseException] = []

    def lease() -> None:
        kept.extend(registry.lease(PAGE * number, PAGE, None) for number in range(1, 800))

    def look() -> None:
        try:
            while loader.is_alive():
                registry.wait_for_devices(0, 2**40)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        loader = threading.Thread(target=lease)
        writer = threading.Thread(target=look)
        loader.start()
        writer.start()
        loader.join()
        writer.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors, errors
    assert len(kept) == 799
