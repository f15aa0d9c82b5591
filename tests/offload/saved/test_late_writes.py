"""Tensors that are filled only after autograd saved them come back filled."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from shorthaul.offload.saved.late_writes import UnfinishedTensors
from shorthaul.offload.saved.record import Record, State
from tests.offload.keep_all import require_bit_equal
from tests.offload.records import make_record


def _record() -> tuple[Record, torch.Tensor]:
    tensor = torch.zeros(16)
    return make_record(tensor, State.KEPT), tensor


def take_finished(
    unfinished: UnfinishedTensors, *, is_outside_operators: bool
) -> list[tuple[Record, torch.Tensor]]:
    found: list[tuple[Record, torch.Tensor]] = []
    unfinished.finish(
        lambda record, content: found.append((record, content)),
        is_outside_operators=is_outside_operators,
    )
    return found


def test_an_operator_is_over_when_its_thread_has_begun_another():
    unfinished, (record, tensor) = UnfinishedTensors(), _record()
    unfinished.watch(record, tensor)
    assert take_finished(unfinished, is_outside_operators=False) == []
    torch.ones(1, requires_grad=True) * 2
    assert take_finished(unfinished, is_outside_operators=False) == [(record, tensor)]
    assert len(unfinished) == 0


def test_outside_of_operators_all_are_over():
    unfinished, (record, tensor) = UnfinishedTensors(), _record()
    unfinished.watch(record, tensor)
    assert take_finished(unfinished, is_outside_operators=True) == [(record, tensor)]


def test_what_another_thread_does_says_nothing():
    unfinished, (record, tensor) = UnfinishedTensors(), _record()
    other = threading.Thread(target=unfinished.watch, args=(record, tensor))
    other.start()
    other.join()
    torch.ones(1, requires_grad=True) * 2
    assert take_finished(unfinished, is_outside_operators=False) == []
    assert len(unfinished) == 1


def test_a_record_that_nobody_needs_is_not_watched_any_more():
    unfinished, (record, tensor) = UnfinishedTensors(), _record()
    unfinished.watch(record, tensor)
    del record
    assert take_finished(unfinished, is_outside_operators=False) == []
    assert len(unfinished) == 0


def test_one_that_could_not_be_looked_at_is_looked_at_again():
    unfinished, (record, tensor) = UnfinishedTensors(), _record()
    unfinished.watch(record, tensor)

    def interrupted(record: Record, content: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unfinished.finish(interrupted, is_outside_operators=True)
    assert take_finished(unfinished, is_outside_operators=True) == [(record, tensor)]


def test_noise_that_rrelu_fills_after_it_was_saved_is_kept(tmp_path):
    x = torch.randn(64, 64, requires_grad=True)
    report = require_bit_equal(tmp_path, [x], lambda: F.rrelu(x * 2, training=True).square().sum())
    assert report.counts.kept == 2  # the noise of each of the two steps


def test_a_mask_that_is_complete_is_not_kept(tmp_path):
    x = torch.randn(64, 64, requires_grad=True)
    report = require_bit_equal(tmp_path, [x], lambda: F.dropout(x * 2).square().sum())
    assert report.counts.kept == 0
