"""Node types and relations as users name them; test_graph.py has the errors by their whole text."""

import pytest
import torch

from shorthaul.errors import GraphError
from shorthaul.graphs.declared_types import choose_relations, choose_types, count_types, listed
from shorthaul.graphs.relation import Relation

ENDS = (torch.tensor([0, 4]), torch.tensor([2, 1]))


def test_types_are_given_or_counted() -> None:
    assert choose_types(None, None, ENDS, None) == {"node": 5}
    assert choose_types(None, 9, ENDS, None) == {"node": 9}
    assert choose_types(None, None, ENDS, ["a"] * 7) == {"node": 7}
    assert choose_types({"a": 2, "b": 3}, None, ENDS, None) == {"a": 2, "b": 3}
    with pytest.raises(GraphError, match="names no node type"):
        choose_types({}, None, ENDS, None)


def test_relations_are_named_or_numbered() -> None:
    numbers = torch.tensor([0, 2])
    assert choose_relations(None, None, None, numbers * 0, ("node",)) == (("node", "to", "node"),)
    assert [each.name for each in choose_relations(None, None, numbers, numbers, ("x",))] == list(
        "012"
    )
    assert len(choose_relations(None, 5, None, numbers * 0, ("node",))) == 5
    named = choose_relations(["a", ("x", "b", "x")], None, numbers, numbers, ("x",))
    assert named == (Relation("x", "a", "x"), Relation("x", "b", "x"))


def test_types_are_counted_over_all_relations() -> None:
    found = count_types(
        {
            Relation("a", "to", "b"): (torch.tensor([3]), torch.tensor([0])),
            Relation("b", "to", "a"): (torch.tensor([6]), torch.tensor([1])),
            Relation("c", "to", "c"): (torch.tensor([]).long(), torch.tensor([]).long()),
        }
    )
    assert found == {"a": 4, "b": 7, "c": 0}


def test_long_lists_are_cut() -> None:
    assert listed([]) == "none"
    assert listed("ab") == "`a`, `b`"
    assert listed(map(str, range(15))).endswith("`11` and 3 more")
