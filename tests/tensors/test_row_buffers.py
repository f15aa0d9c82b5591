"""Large results share a pool that hands memory out again only when nobody sees it any more."""

from __future__ import annotations

import torch

from shorthaul.settings import settings
from shorthaul.tensors.row_buffers import empty_rows

LARGE = (1024, 1024)


def test_memory_is_used_again_when_the_last_tensor_is_gone():
    with settings.override(row_buffer_bytes="64MiB"):
        first = empty_rows(LARGE, torch.float32)
        address = first.data_ptr()
        view = first[3]
        del first
        other = empty_rows(LARGE, torch.float32)
        assert other.data_ptr() != address  # the view still lies there
        del view
        assert empty_rows(LARGE, torch.float32).data_ptr() == address


def test_more_than_the_pool_is_ordinary_memory():
    with settings.override(row_buffer_bytes="9MiB"):
        held = [empty_rows(LARGE, torch.float32) for _ in range(4)]
        for number, each in enumerate(held):
            each.fill_(number)
        assert [int(each[0, 0]) for each in held] == [0, 1, 2, 3]
        assert len({each.data_ptr() for each in held}) == 4


def test_small_results_and_no_pool():
    assert empty_rows((3, 0), torch.int8).shape == (3, 0)
    with settings.override(row_buffer_bytes=0):
        assert empty_rows(LARGE, torch.float64).shape == LARGE
