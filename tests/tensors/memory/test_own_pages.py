"""Memory in pages of its own: lines are whole, and neighbors are not mapped along."""

import copy
import mmap

import pytest
import torch

import shorthaul as sh
from shorthaul.tensors.memory.own_pages import empty_pages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (3,), (100, 7), (0, 4), (2, 0)])
def test_tensors_begin_with_a_page(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = empty_pages(shape, dtype)
    assert tensor.shape == shape
    assert tensor.dtype is dtype
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % mmap.PAGESIZE == 0
    assert not tensor.any()
    assert tensor.fill_(1).all()


def test_the_memory_lives_as_long_as_its_tensors() -> None:
    part = empty_pages((1000, 10), torch.float32).fill_(3)[500:]
    assert bool((part == 3).all())


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(MemoryError, match="there is no memory for a table of 9,"):
        empty_pages((9 * 10**18,), torch.uint8)


def test_unified_tensors_of_our_own_have_whole_lines() -> None:
    made = sh.unified_empty(3, 100)
    made.copy_(torch.arange(300.0).view(3, 100))
    turned = sh.unified(torch.arange(6.0).view(2, 3).t())
    for table in (made, sh.unified_zeros(5, 128), copy.deepcopy(made)):
        assert table.data_ptr() % mmap.PAGESIZE == 0
    assert torch.equal(copy.deepcopy(made), made)
    assert copy.deepcopy(turned).stride() == turned.stride()
    assert torch.equal(copy.deepcopy(turned), turned)
    assert not sh.unified_zeros(4, 4).any()
