from __future__ import annotations

import gc

import pytest
import torch

from shorthaul.errors import InPlaceChangeError
from shorthaul.offload.saved.identity import VersionWitness, find_view
from shorthaul.offload.saved.record import Farewell, Handle, State
from tests.offload.records import make_record


@pytest.mark.parametrize(
    ("before", "after", "is_allowed"),
    [
        (State.STORING, State.STORED, True),
        (State.STORING, State.KEPT, True),
        (State.STORED, State.STORING, False),
        (State.STORED, State.KEPT, False),
        (State.KEPT, State.STORING, False),
        (State.KEPT, State.STORED, True),
    ],
)
def test_states_only_move_forward(before, after, is_allowed):
    record = make_record(torch.ones(2), before)
    if is_allowed:
        record.move_to(after)
        assert record.state is after
    else:
        with pytest.raises(ValueError, match=f"from {before.value} to {after.value}"):
            record.move_to(after)


def test_a_record_tells_when_its_last_handle_is_gone():
    tensor, told = torch.ones(4), []
    record = make_record(tensor, State.STORED)
    farewell = Farewell(record, told.append)
    farewell.holdings = record.holdings
    view = find_view(tensor, record.key)
    handles = [Handle(record, view, VersionWitness(tensor)) for _ in range(2)]
    del record
    handles.pop()
    gc.collect()
    assert told == []
    handles.pop()
    gc.collect()
    assert told == [farewell]
    assert farewell.holdings.state is State.STORED


def test_a_handle_notices_a_change_in_place():
    tensor = torch.ones(4)
    record = make_record(tensor, State.STORED)
    handle = Handle(record, find_view(tensor, record.key), VersionWitness(tensor))
    handle.require_unchanged()
    tensor.add_(1)
    with pytest.raises(InPlaceChangeError, match=r"\[torch.FloatTensor \[4\]\] is at version 1"):
        handle.require_unchanged()
