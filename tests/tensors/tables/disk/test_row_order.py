"""Where the rows of a reordered table lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import TableFormatError
from shorthaul.tensors.tables.disk.row_order import RowOrder


@settings(deadline=None)
@given(st.integers(0, 40).flatmap(lambda rows: st.permutations(range(rows))), st.data())
def test_places_and_ids_are_inverse_and_as_in_a_list(drawn: list[int], data: st.DataObject) -> None:
    first = drawn[: data.draw(st.integers(0, len(drawn)))]
    order = RowOrder(torch.tensor(first, dtype=torch.int64), len(drawn))
    plain = first + [each for each in range(len(drawn)) if each not in first]
    every = torch.arange(len(drawn))
    assert order.ids(every).tolist() == plain
    assert order.places(every).tolist() == [plain.index(each) for each in range(len(drawn))]


@pytest.mark.parametrize("first", [[1, 1], [-1], [6], [0, 2, 5, 0]])
def test_what_is_no_order_is_refused(first: list[int]) -> None:
    with pytest.raises(TableFormatError, match="not different ids of 6 rows"):
        RowOrder(torch.tensor(first), 6)
