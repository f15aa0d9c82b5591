"""Widths by name, by number, and as products."""

import pytest

from shorthaul.errors import LayerArgumentError
from shorthaul.relational import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.ir.spaces import Space


def test_what_arguments_are():
    assert NodeFeature("width").space is Space.NODE
    assert EdgeFeature().widths == ()
    assert Weight("relation", "a").space is Space.RELATION
    assert Weight("node_type", "a").widths == ("a",)
    both = Weight("relation", "node_type", "a")
    assert (both.space, both.widths) == (Space.RELATION_TYPE, ("a",))
    assert Weight("a", "relation_width").space is Space.ONE


def test_widths_become_numbers():
    declared = Weight("heads*out", 3, "2*out")
    assert declared.resolve({"heads": 2, "out": 5}, "w") == (10, 3, 10)


def test_a_width_that_is_missing_is_named():
    with pytest.raises(LayerArgumentError, match="`depth`, which was not given"):
        NodeFeature("depth").resolve({"width": 3}, "x")
