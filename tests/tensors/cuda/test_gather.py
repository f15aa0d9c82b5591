"""Rows for a device: mapped where they can be, gathered by the CPU where not, and said so.

The device is the CPU here, behind a recorded fake of the CUDA runtime. What the kernels do is
tested in Triton's interpreter (`interpreted_gather`, which goes the whole way from table to rows).
"""

from __future__ import annotations

import gc

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import (
    CudaMappingError,
    CudaUnavailableError,
    MissingExtraError,
    RowIndexError,
)
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.jit.launching import triton_at_hand
from shorthaul.jit.launching.triton_at_hand import NOT_INSTALLED
from shorthaul.settings import settings
from shorthaul.tensors.cuda import gather as device_gather
from shorthaul.tensors.cuda.gather import (
    DeviceGather,
    gather_for_device,
    gather_reduce_for_device,
    keep_hot_rows,
)
from shorthaul.tensors.cuda.registration import HostRegistry
from shorthaul.tensors.cuda.runtime import NOT_SUPPORTED
from shorthaul.tensors.tables.row_range import RowRange
from shorthaul.tensors.tables.table import HostTable
from tests.tensors.fake_cuda import FakeCudaRuntime

CPU = torch.device("cpu")
IDS = torch.tensor([3, -1, 0, 3])
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def runtime() -> FakeCudaRuntime:
    return FakeCudaRuntime(shift_bytes=2**40)


@pytest.fixture
def gatherer(runtime: FakeCudaRuntime, monkeypatch: pytest.MonkeyPatch) -> DeviceGather:
    """Without Triton, whose kernels cannot run here: rows are selected from mapped memory."""
    monkeypatch.setattr(device_gather, "why_no_triton", lambda: NOT_INSTALLED)
    monkeypatch.setattr(triton_at_hand, "why_no_triton", lambda: NOT_INSTALLED)
    return DeviceGather(HostRegistry(runtime))


def _reasons() -> list[str]:
    return [each.reason for each in taken_fallbacks() if each.what == device_gather.WHAT]


def test_a_table_is_mapped_once_and_unmapped_with_it(
    gatherer: DeviceGather, runtime: FakeCudaRuntime
) -> None:
    values = torch.randn(50, 7)
    table = HostTable(values)
    for _ in range(3):
        assert torch.equal(gatherer.gather(table, IDS, CPU), values[IDS])
    assert [each[0] for each in runtime.calls] == ["register"]
    del table
    gc.collect()
    assert runtime.ranges == {}
    assert values.shape == (50, 7)


def test_forgetting_unmaps(gatherer: DeviceGather, runtime: FakeCudaRuntime) -> None:
    table = HostTable(torch.randn(50, 7))
    gatherer.gather(table, IDS, CPU)
    gatherer.forget(table)
    gc.collect()
    assert runtime.ranges == {}
    gatherer.forget(table)


def test_quantized_rows_are_widened(gatherer: DeviceGather) -> None:
    stored, scales = torch.randint(-100, 100, (9, 4), dtype=torch.int8), torch.rand(9)
    table = HostTable(stored, scales=scales, dtype=torch.float32)
    expected = (stored.float() * scales[:, None])[IDS]
    assert torch.equal(gatherer.gather(table, IDS, CPU), expected)
    half = HostTable(torch.randn(9, 4).half(), dtype=torch.float32)
    assert torch.equal(gatherer.gather(half, IDS, CPU), half.gather(IDS))


def test_a_range_is_mapped_with_its_table(gatherer: DeviceGather, runtime: FakeCudaRuntime) -> None:
    stored, scales = torch.randint(-100, 100, (20, 4), dtype=torch.int8), torch.rand(20)
    table = HostTable(stored, scales=scales, dtype=torch.float32)
    part = RowRange(table, range(3, 18, 2))
    assert torch.equal(gatherer.gather(part, IDS, CPU), part.gather(IDS))
    assert len(runtime.calls) == 1
    with pytest.raises(RowIndexError):
        gatherer.gather(part, torch.tensor([8]), CPU)  # the table has it, the range has not


def test_an_id_out_of_range_is_named(gatherer: DeviceGather) -> None:
    with pytest.raises(RowIndexError, match="row id 50 at position 1"):
        gatherer.gather(HostTable(torch.randn(50, 7)), torch.tensor([0, 50]), CPU)


def test_out_is_filled(gatherer: DeviceGather) -> None:
    values, out = torch.randn(50, 7), torch.empty(4, 7)
    assert gatherer.gather(HostTable(values), IDS, CPU, out=out) is out
    assert torch.equal(out, values[IDS])


def test_what_cannot_be_mapped_is_gathered_by_the_cpu_and_said(
    gatherer: DeviceGather, runtime: FakeCudaRuntime
) -> None:
    values = torch.randn(50, 7)
    runtime.answer_next("register", NOT_SUPPORTED)
    table = HostTable(values)
    for _ in range(2):  # refused once, not asked again
        assert torch.equal(gatherer.gather(table, IDS, CPU), values[IDS])
    assert len(runtime.calls) == 1
    assert any("CUDA answers 801" in each for each in _reasons())
    turned = HostTable(torch.randn(7, 50).t())
    assert torch.equal(gatherer.gather(turned, IDS, CPU), turned.gather(IDS))
    assert any("side by side" in each for each in _reasons())
    assert gatherer.keep_hot_rows(turned, torch.arange(50), CPU, 1000) == 0.0


def test_what_was_asked_for_by_name_is_an_error(
    gatherer: DeviceGather, runtime: FakeCudaRuntime
) -> None:
    table = HostTable(torch.randn(50, 7))
    runtime.answer_next("register", NOT_SUPPORTED)
    with settings.override(kernels="generated"):
        with pytest.raises(CudaMappingError):
            gatherer.gather(table, IDS, CPU)
        with pytest.raises(MissingExtraError, match="triton"):
            gatherer.gather(table, IDS, CPU)


def test_bytes_that_a_device_reads_are_counted(gatherer: DeviceGather) -> None:
    table = HostTable(torch.randn(50, 8))
    gatherer.map(table, CPU)
    with sh.meter() as m:
        gatherer.gather(table, IDS, CPU)
    assert m.bytes_between("memory", "cpu", "rows gathered") == 4 * 32
    gatherer.gather(RowRange(table, range(10, 20)), IDS, CPU)
    assert (table.stats().rows_asked, table.stats().moved_bytes) == (8, 8 * 32)


def test_hot_rows_say_what_they_cover(gatherer: DeviceGather) -> None:
    table = HostTable(torch.randn(4, 8))
    assert gatherer.keep_hot_rows(table, torch.tensor([1, 7, 0, 2]), CPU, 2 * 32) == 0.9


def test_without_kernels_segments_are_reduced_by_the_cpu(gatherer: DeviceGather) -> None:
    table = HostTable(torch.randn(50, 8))
    pointers = torch.tensor([0, 1, 4])
    got = gatherer.gather_reduce(table, pointers, IDS, CPU, "mean")
    assert torch.equal(got, table.gather_reduce(pointers, IDS, "mean"))


def test_other_devices_get_copies() -> None:
    values, out = torch.randn(50, 7), torch.empty(4, 7)
    table = HostTable(values)
    assert torch.equal(gather_for_device(table, IDS, "cpu"), values[IDS])
    assert gather_for_device(table, IDS, "cpu", out=out) is out
    assert gather_for_device(table, IDS, "meta").shape == (4, 7)
    pointers = torch.tensor([0, 1, 4])
    reduced = gather_reduce_for_device(table, pointers, IDS, "cpu", weights=torch.ones(4))
    assert torch.equal(reduced, table.gather_reduce(pointers, IDS))
    assert keep_hot_rows(table, torch.ones(50), "cpu", budget_bytes=1000) == 0.0


def test_unified_tensors_ask_for_rows_this_way(
    gatherer: DeviceGather, runtime: FakeCudaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`u.gather(ids, device="cuda")`, with the CPU in the device's place."""
    monkeypatch.setattr(device_gather, "_gatherer_for", lambda _: (CPU, gatherer))
    values = torch.randn(50, 7)
    u = sh.unified(values)
    assert torch.equal(u.gather(IDS, device="cuda"), values[IDS])
    assert [each[0] for each in runtime.calls] == ["register"]
    pointers = torch.tensor([0, 3, 4])
    reduced = u.gather_reduce(pointers, IDS, "max", device="cuda")
    assert torch.equal(reduced, torch.stack([values[IDS[:3]].amax(0), values[IDS[3]]]))
    assert torch.equal(u[10:20].gather(IDS, device="cuda"), values[10:20][IDS])
    del u
    gc.collect()
    assert runtime.ranges == {}


@no_gpu
def test_cuda_that_is_not_there_is_an_error_where_it_was_asked_for_by_name() -> None:
    table = HostTable(torch.randn(50, 7))
    with settings.override(kernels="generated"), pytest.raises(CudaUnavailableError):
        gather_for_device(table, IDS, "cuda")
    with pytest.raises((RuntimeError, AssertionError), match="CUDA"):  # PyTorch's own
        gather_for_device(table, IDS, "cuda")


def test_a_slice_is_mapped_alone_where_all_of_its_memory_cannot_be(
    gatherer: DeviceGather, runtime: FakeCudaRuntime
) -> None:
    runtime.lock_limit_bytes = 8 * 4096
    values = sh.unified_empty(4096, 16)  # 64 pages
    values.copy_(torch.arange(4096.0 * 16).view(4096, 16))
    part = values[256:300]
    assert torch.equal(gatherer.gather(part.table, IDS, CPU), part.cpu()[IDS])
    assert 0 < runtime.registered_bytes <= 2 * 4096
    assert gatherer.map(values.table, CPU) is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float64])
def test_a_view_begins_where_its_tensor_does_in_memory_of_any_dtype(
    gatherer: DeviceGather, dtype: torch.dtype
) -> None:
    """Not at a page's beginning: what is mapped starts there, and its offset counts elements."""
    values = torch.arange(3000).to(dtype)[7:]
    memory = HostTable(values)
    for tensor in (values, values[20:60]):
        seen = gatherer.view(memory, tensor, CPU)
        assert seen is not None
        assert torch.equal(seen, tensor)
