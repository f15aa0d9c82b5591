"""A range of rows is a table whose ids are counted from its start."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.errors import RowIndexError
from shorthaul.tensors.tables.row_range import RowRange
from shorthaul.tensors.tables.table import HostTable

ROWS = torch.arange(40.0).view(20, 2)

slices = st.builds(slice, st.integers(0, 20), st.integers(0, 22), st.sampled_from([None, 1, 2, 5]))


@given(slices, slices)
def test_ranges_of_ranges_are_slices_of_slices(first: slice, second: slice) -> None:
    outer = RowRange(HostTable(ROWS), range(20)[first])
    inner = RowRange(outer, range(len(range(20)[first]))[second])
    wanted = ROWS[first][second]
    assert inner.shape == wanted.shape
    assert torch.equal(inner.read(0, inner.rows), wanted)
    assert torch.equal(inner.gather(torch.arange(inner.rows)), wanted)
    tensor = inner.tensor()
    assert tensor is not None
    assert torch.equal(tensor, wanted)


def test_every_operation_counts_from_the_start() -> None:
    part = RowRange(HostTable(ROWS.clone()), range(5, 15, 3))  # rows 5, 8, 11, 14
    ids, wanted = torch.tensor([-1, 0]), ROWS[[14, 5]]
    assert torch.equal(part.prefetch(ids).wait(), wanted)
    assert torch.equal(part.gather_reduce(torch.tensor([0, 2]), ids, "sum"), wanted.sum(0)[None])
    assert torch.equal(part.gather_linear(ids, torch.eye(2)), wanted)
    assert torch.equal(part.read(1, 3), ROWS[[8, 11]])
    part.scatter_(torch.tensor([1]), torch.zeros(1, 2))
    assert torch.equal(part.table.gather(torch.tensor([8])), torch.zeros(1, 2))
    assert part.stats() == part.table.stats()
    part.close()
    with pytest.raises(RowIndexError, match=r"row id 4 at position 1 .* 4 rows"):
        part.gather(torch.tensor([0, 4]))
