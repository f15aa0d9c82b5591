from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shorthaul.advice.watching.parts import by_part, find_repeated


def test_the_largest_are_taken_apart_as_long_as_there_are_rows():
    sizes = {"a.x.p": 4, "a.x.q": 4, "a.y": 1, "b.z": 5, "": 2}
    assert by_part(sizes, rows=3) == {"a": 9, "b.z": 5, "": 2}
    assert by_part(sizes, rows=4) == {"a.x": 8, "a.y": 1, "b.z": 5, "": 2}
    assert by_part(sizes, rows=5) == {"a.x.p": 4, "a.x.q": 4, "a.y": 1, "b.z": 5, "": 2}


def test_what_matters_little_is_not_taken_apart():
    sizes = {"large.x": 96, "large.y": 100, "small.x": 2, "small.y": 2}
    assert by_part(sizes) == {"large.x": 96, "large.y": 100, "small": 4}


def test_a_module_with_amounts_of_its_own_stays_beside_its_parts():
    assert by_part({"a": 3, "a.x": 4}) == {"a": 3, "a.x": 4}


def test_blocks_of_one_class_are_put_together_and_others_are_not():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3))
    model = nn.ModuleDict({"blocks": blocks, "head": nn.Sequential(nn.Linear(2, 2))})
    assert find_repeated(model) == {"blocks"}
    sizes = {f"blocks.{i}.{j}": i + 1 for i in range(3) for j in range(2)} | {"head.0": 7}
    assert by_part(sizes, find_repeated(model)) == {
        "blocks.*.0": 6,
        "blocks.*.1": 6,
        "head.0": 7,
    }


_names = st.lists(st.sampled_from("ab01"), max_size=4).map(".".join)


@settings(deadline=None)
@given(st.dictionaries(_names, st.integers(1, 100), max_size=30), st.integers(1, 12))
def test_nothing_is_lost_or_counted_twice(sizes, rows):
    found = by_part(sizes, {"", "a", "a.0"}, rows)
    assert sum(found.values()) == sum(sizes.values())
