"""The same objects give the same graph; changed, other or dead ones another."""

import torch

from shorthaul.relational.inputs import kept_graphs
from shorthaul.relational.inputs.kept_graphs import KEPT_GRAPHS, keep_graph


class Owner:
    """Something that can be referred to weakly."""


def test_made_once_for_the_same_facts_and_owners():
    owner, tensor = Owner(), torch.tensor([1, 2])
    made = keep_graph(("a", 1), [owner, tensor], Owner)
    assert keep_graph(("a", 1), [owner, tensor], Owner) is made
    assert keep_graph(("a", 2), [owner, tensor], Owner) is not made
    assert keep_graph(("a", 1), [Owner(), tensor], Owner) is not made


def test_a_tensor_that_was_written_to_is_another():
    tensor = torch.tensor([1, 2])
    made = keep_graph(("b",), [tensor], Owner)
    tensor[0] = 5
    assert keep_graph(("b",), [tensor], Owner) is not made


def test_a_view_that_was_written_through_counts_too():
    tensor = torch.tensor([[1, 2], [3, 4]])
    made = keep_graph(("c",), [tensor], Owner)
    tensor[1].add_(1)
    assert keep_graph(("c",), [tensor], Owner) is not made


def test_nothing_is_kept_of_tensors_without_a_version():
    with torch.inference_mode():
        tensor = torch.tensor([1, 2])
    assert keep_graph(("d",), [tensor], Owner) is not keep_graph(("d",), [tensor], Owner)


def test_what_an_owner_holds_is_told_apart():
    owner, inside = Owner(), Owner()
    made = keep_graph(("e",), [owner], Owner, inside)
    assert keep_graph(("e",), [owner], Owner, inside) is made
    assert keep_graph(("e",), [owner], Owner, Owner()) is not made


def test_few_are_kept():
    owners = [Owner() for _ in range(2 * KEPT_GRAPHS)]
    for each in owners:
        keep_graph(("f",), [each], Owner)
    assert len(kept_graphs._kept) == KEPT_GRAPHS
