"""Mapped rows are the table's own bytes, whatever its strides, and end with their last view."""

import gc
import weakref

import pytest
import torch

from shorthaul.errors import CudaMappingError
from shorthaul.tensors.cuda.mapping import map_rows
from shorthaul.tensors.cuda.registration import HostRegistry
from shorthaul.tensors.kernels.stored_rows import StoredRows
from tests.tensors.fake_cuda import FakeCudaRuntime

CPU = torch.device("cpu")


def _rows(values: torch.Tensor) -> StoredRows:
    return StoredRows(values, values.dtype)


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(300, 33),
        torch.randn(300, 40)[5:200, 3:36],
        torch.randn(300)[7:],
        torch.randn(50, 4, 6, dtype=torch.float64)[::3],
        torch.arange(300).to(torch.bfloat16).view(100, 3),
        torch.rand(77, 5) > 0.5,
        torch.randn(9, 5, dtype=torch.complex64),
        torch.randn(4).expand(6, 4),
    ],
    ids=["plain", "cut", "one dimension", "steps", "bfloat16", "bool", "complex", "expanded"],
)
@pytest.mark.parametrize("shift_bytes", [0, 2**40])
def test_the_same_bytes_without_a_copy(values: torch.Tensor, shift_bytes: int) -> None:
    runtime = FakeCudaRuntime(shift_bytes=shift_bytes)
    mapped = map_rows(_rows(values), CPU, HostRegistry(runtime))
    assert mapped.values.data_ptr() == values.data_ptr()
    assert mapped.values.stride() == values.stride()
    assert mapped.dtype is values.dtype
    assert torch.equal(mapped.values, values)
    assert runtime.registered_bytes >= values.untyped_storage().nbytes() // 4 // 4096 * 4096
    del mapped
    gc.collect()
    assert runtime.ranges == {}


def test_the_source_lives_until_the_last_view_is_gone() -> None:
    runtime = FakeCudaRuntime()
    values = torch.randn(100, 10)
    expected = values.clone()
    storage = weakref.ref(values)
    mapped = map_rows(_rows(values), CPU, HostRegistry(runtime))
    row = mapped.values[3]
    del values, mapped
    gc.collect()
    assert storage() is not None
    assert torch.equal(row, expected[3])
    del row
    gc.collect()
    assert storage() is None
    assert runtime.ranges == {}


def test_scales_are_copied() -> None:
    scales = torch.rand(20)
    rows = StoredRows(torch.ones(20, 8, dtype=torch.int8), torch.float32, scales)
    mapped = map_rows(rows, CPU, HostRegistry(FakeCudaRuntime()))
    assert mapped.scales is not None
    assert torch.equal(mapped.scales, scales)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_nothing_is_mapped_for_nothing(shape: tuple[int, int]) -> None:
    runtime = FakeCudaRuntime()
    mapped = map_rows(_rows(torch.empty(shape)), CPU, HostRegistry(runtime))
    assert mapped.values.shape == shape
    assert runtime.calls == []


@pytest.mark.parametrize("wrong_byte", [0, -1])
def test_a_device_that_reads_other_bytes_is_found_out(wrong_byte: int) -> None:
    runtime = FakeCudaRuntime()

    def read_wrongly(memory: torch.Tensor) -> torch.Tensor:
        seen = memory.clone()
        seen[wrong_byte if wrong_byte else lead_bytes] ^= 255
        return seen

    values = torch.randn(5000, 7)
    lead_bytes = values.data_ptr() % 4096
    runtime.reads = read_wrongly
    with pytest.raises(CudaMappingError, match="other bytes there than the host"):
        map_rows(_rows(values), CPU, HostRegistry(runtime))
    gc.collect()
    assert runtime.ranges == {}
