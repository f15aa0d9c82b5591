"""Intermediate memory is used again; outputs are the caller's."""

import torch

from shorthaul.relational.topology.workspace import POOLED_BYTES, empty_rows


def test_large_values_use_the_same_memory_again():
    shape = (POOLED_BYTES, 2)
    first = empty_rows(shape, torch.float32, False)
    where = first.data_ptr()
    del first
    assert empty_rows(shape, torch.float32, False).data_ptr() == where


def test_what_is_held_is_not_handed_out():
    shape = (POOLED_BYTES, 2)
    first = empty_rows(shape, torch.float32, False)
    view = first[3:]
    where = first.data_ptr()
    del first
    second = empty_rows(shape, torch.float32, False)
    assert second.data_ptr() != where
    view.fill_(1)
    second.fill_(2)
    assert bool((view == 1).all())


def test_small_values_and_outputs_are_ordinary():
    assert empty_rows((3, 2), torch.float64, False).shape == (3, 2)
    assert empty_rows((POOLED_BYTES, 2), torch.float32, True).untyped_storage().resizable()
