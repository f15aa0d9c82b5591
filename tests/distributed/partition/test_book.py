"""A lookup is a search among offsets."""

from __future__ import annotations

import pytest
import torch

from shorthaul.distributed import PartitionBook
from shorthaul.errors import RankSetupError, RowArgumentError

BOOK = PartitionBook({"a": (0, 0, 3, 7, 7), "b": (0, 2, 2, 2, 5)})


def test_owners_are_those_whose_rows_have_the_id() -> None:
    for name in BOOK.node_types:
        owners = BOOK.owners(name, torch.arange(BOOK.count(name), dtype=torch.int32))
        for number, owner in enumerate(owners.tolist()):
            assert number in BOOK.rows(name, owner)


def test_owners_by_global_id() -> None:
    assert BOOK.owners_of_nodes(torch.tensor([11, 0, 7])).tolist() == [3, 1, 0]
    assert BOOK.global_rows(3) == [range(7, 7), range(9, 12)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_fewer_ranks_own_neighboring_parts(ranks: int) -> None:
    merged = BOOK.merged(ranks)
    assert merged.parts == ranks
    assert sum(len(merged.rows("a", rank)) for rank in range(ranks)) == 7
    assert set(merged.offsets["a"]) <= set(BOOK.offsets["a"])


def test_more_ranks_than_parts_are_refused() -> None:
    with pytest.raises(RankSetupError, match="4 parts cannot be owned by 5 ranks"):
        BOOK.merged(5)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(RowArgumentError, match="one of a, b"):
        BOOK.rows("c", 0)
