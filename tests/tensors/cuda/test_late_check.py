"""What a device left in its flags is told once, by whoever asks first; the device is the CPU here.

That nothing waits, and that what is wrong comes out later, is tested on pretended devices.
"""

from __future__ import annotations

import pytest
import torch

from shorthaul.errors import LateRowIndexError, RowArgumentError, RowIndexError
from shorthaul.tensors.cuda.late_check import LateCheck

CPU = torch.device("cpu")


def test_what_nobody_left_is_no_error() -> None:
    check = LateCheck(CPU)
    check.note_segments(torch.tensor([0, 2, 2, 5]), 5)
    check.note_launch(torch.tensor([1]), 3)
    check.raise_if_over()
    check.require_clear()


def test_a_host_that_waits_names_the_id_once() -> None:
    check, ids = LateCheck(CPU), torch.tensor([1, 7])
    check.position.fill_(1)
    with pytest.raises(RowIndexError, match="row id 7 at position 1"):
        check.note_launch(ids, 3)
    check.note_launch(ids, 3)


def test_who_asks_later_hears_of_the_position_once() -> None:
    check = LateCheck(CPU)
    check.position.fill_(1)
    with pytest.raises(LateRowIndexError, match="position 1 "):
        check.require_clear()
    check.require_clear()


@pytest.mark.parametrize("pointers", [[1, 5], [0, 4], [0, 3, 2, 5]])
def test_segments_that_do_not_ascend_to_the_number_of_ids_are_told(pointers: list[int]) -> None:
    check = LateCheck(CPU)
    check.note_segments(torch.tensor(pointers), 5)
    with pytest.raises(RowArgumentError, match="pointers of an earlier gather_reduce on cpu"):
        check.require_clear()
