"""The same objects give the same graph; changed, other or dead ones another."""

import weakref

import torch

from shorthaul.graphs import RelationalGraph
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


def _make(edges=1):
    return RelationalGraph.from_edges(
        torch.zeros(edges, dtype=torch.int64), torch.zeros(edges).long()
    )


def test_many_are_kept_for_as_long_as_their_owners_live():
    owners = [Owner() for _ in range(4 * KEPT_GRAPHS)]
    made = [keep_graph(("f",), [each], _make) for each in owners]
    for _ in range(2):
        again = [keep_graph(("f",), [each], _make) for each in owners]
        assert all(one is other for one, other in zip(made, again, strict=True))
    del owners, again
    keep_graph(("g",), [Owner()], Owner)
    assert not any(each.made in made for each in kept_graphs._kept.values())


def test_what_a_graph_owns_goes_with_it():
    owner = Owner()
    graph = keep_graph(("edges",), [owner], _make)
    loops = weakref.ref(keep_graph(("loops",), [graph], _make))
    del owner, graph
    keep_graph(("h",), [Owner()], Owner)
    assert loops() is None


def test_few_large_ones_are_kept(monkeypatch):
    monkeypatch.setattr(kept_graphs, "KEPT_EDGES", 100)
    kept_graphs._kept.clear()
    owners = [Owner() for _ in range(2 * KEPT_GRAPHS)]
    for each in owners:
        keep_graph(("i",), [each], lambda: _make(10))
    assert len(kept_graphs._kept) == KEPT_GRAPHS
    kept_graphs._kept.clear()
    for each in owners:
        keep_graph(("j",), [each], lambda: _make(3))
    assert len(kept_graphs._kept) == len(owners)
