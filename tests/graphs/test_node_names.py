"""Names of many nodes in few bytes."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.errors import GraphError
from shorthaul.graphs.node_names import NodeNames


@given(st.lists(st.text(max_size=5), max_size=20))
def test_names_are_the_list_they_came_from(names: list[str]) -> None:
    packed = NodeNames.of(names)
    assert list(packed) == names
    assert len(packed) == len(names)
    assert packed[1:3] == names[1:3]
    for name in names:
        assert packed.index(name) == names.index(name)
        assert name in packed


def test_what_is_not_there() -> None:
    names = NodeNames.of(["a", "b"])
    assert names[-1] == "b"
    assert "c" not in names
    assert 3 not in names
    with pytest.raises(ValueError, match="no node is called 'c'"):
        names.index("c")
    with pytest.raises(ValueError, match="no node is called 'a'"):
        names.index("a", 1)
    for position in (2, -3):
        with pytest.raises(IndexError, match="there are 2 names"):
            names[position]


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    names = NodeNames(torch.tensor([0xFF, 0x61], dtype=torch.uint8), torch.tensor([0, 2]))
    assert names[0] == "\N{REPLACEMENT CHARACTER}a"


def test_repr_and_pickle() -> None:
    names = NodeNames.of(["a", "b", "c", "d"])
    names.index("a")
    assert repr(names) == "NodeNames(4: 'a', 'b', 'c', ..)"
    assert list(pickle.loads(pickle.dumps(names))) == ["a", "b", "c", "d"]


def test_other_tensors_are_refused() -> None:
    with pytest.raises(GraphError, match=r"names are uint8 text with int64 offsets"):
        NodeNames(torch.tensor([1]), torch.tensor([0]))
