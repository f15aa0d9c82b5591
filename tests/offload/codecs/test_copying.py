from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from shorthaul.offload.codecs.copying import Copier, emit_copying
from shorthaul.settings import settings
from shorthaul.storage import BufferPool


def copiers() -> list[Copier]:
    with settings.override(kernels="torch"):
        plain = Copier()
    return [Copier(), plain]


def sum_only(copier: Copier, source: torch.Tensor) -> int:
    return copier.sum_only(source.data_ptr(), source.numel())


@pytest.fixture(scope="module", params=[0, 1], ids=["kernel", "torch"])
def copier(request) -> Copier:
    return copiers()[request.param]


@pytest.fixture(scope="module")
def pool():
    with BufferPool("32MiB") as pool:
        yield pool


@given(st.integers(0, 2000), st.integers(0, 70), st.integers(0, 2**31))
@hypothesis_settings(deadline=None)
def test_bytes_and_sums_agree_for_any_length_and_offset(copier, pool, length, offset, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 256, (offset + length,), dtype=torch.uint8, generator=generator)
    source = whole[offset:]
    with pool.take(max(1, length)) as buffer:
        target = buffer.tensor(torch.uint8, (length,))
        copied = copier.copy_and_sum(source.data_ptr(), buffer.address, length)
        assert copied == sum_only(copier, source)
        assert torch.equal(source, target)


@pytest.mark.parametrize("length", [1, 255, 256, 257, 2**20 - 1, 2**20, 3 * 2**20 + 17])
def test_every_single_bit_counts(copier, length):
    source = torch.arange(length, dtype=torch.int64).to(torch.uint8)
    before = sum_only(copier, source)
    for position in {0, length // 2, length - 1}:
        for bit in (1, 128):
            source[position] ^= bit
            assert sum_only(copier, source) != before
            source[position] ^= bit
    assert sum_only(copier, source) == before


def test_order_and_length_count(copier):
    ones_then_zeros = torch.tensor([1] * 256 + [0] * 256, dtype=torch.uint8)
    assert sum_only(copier, ones_then_zeros) != sum_only(copier, ones_then_zeros.flip(0))
    assert sum_only(copier, torch.zeros(255, dtype=torch.uint8)) != sum_only(
        copier, torch.zeros(256, dtype=torch.uint8)
    )


def test_the_sum_does_not_depend_on_the_number_of_threads():
    copier, source = Copier(), torch.randint(0, 256, (5 * 2**20 + 3,), dtype=torch.uint8)
    before = torch.get_num_threads()
    sums = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        sums.add(sum_only(copier, source))
    torch.set_num_threads(before)
    assert len(sums) == 1


def test_the_source_says_what_it_exports():
    assert [each.name for each in emit_copying().functions] == ["copy_and_sum", "sum_only"]
