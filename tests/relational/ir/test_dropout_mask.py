"""Dropout's mask: its share, its scale, and that it can be made again."""

import torch

from shorthaul.relational.ir.dropout_mask import keep_mask, start_state


def test_the_mask_keeps_the_mean():
    mask = keep_mask(1000, 64, 0.25, 1, 5, torch.empty(0, dtype=torch.float64))
    assert set(mask.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs(mask.mean().item() - 1) < 0.01


def test_the_same_seed_gives_the_same_mask_and_streams_differ():
    like = torch.empty(0)
    assert torch.equal(keep_mask(9, 9, 0.5, 1, 5, like), keep_mask(9, 9, 0.5, 1, 5, like))
    assert not torch.equal(keep_mask(9, 9, 0.5, 1, 5, like), keep_mask(9, 9, 0.5, 2, 5, like))
    assert start_state(5, 1) != start_state(6, 1)


def test_everything_can_be_dropped():
    assert not keep_mask(4, 4, 1.0, 1, 5, torch.empty(0)).any()
