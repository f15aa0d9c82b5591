"""The smallest space that dependencies allow."""

import pytest

from shorthaul.relational.ir.spaces import WAYS, Space, choose_space, find_way, follow


@pytest.mark.parametrize(
    ("needs", "space"),
    [
        (set(), Space.ONE),
        ({"relation"}, Space.RELATION),
        ({"source"}, Space.NODE),
        ({"target"}, Space.TARGET),
        ({"source", "relation"}, Space.SOURCE_PAIR),
        ({"target", "relation"}, Space.TARGET_PAIR),
        ({"source", "target"}, Space.EDGE),
        ({"edge"}, Space.EDGE),
    ],
)
def test_a_value_has_a_row_for_what_it_depends_on(needs, space):
    assert choose_space(frozenset(needs)) is space


def test_unknown_dependencies_are_refused():
    with pytest.raises(ValueError, match="color"):
        choose_space(frozenset({"color"}))


def test_ways_lead_to_smaller_spaces_and_are_found_back():
    for (fine, way), coarse in WAYS.items():
        assert follow(fine, way) is coarse
        if fine is not Space.RELATION or coarse is Space.ONE:
            assert find_way(fine, coarse) == way


def test_a_relation_has_two_ends_so_a_type_must_say_which():
    assert find_way(Space.RELATION, Space.NODE_TYPE) is None
    assert find_way(Space.RELATION, Space.RELATION_TYPE) is None


def test_a_way_that_does_not_exist_names_those_that_do():
    with pytest.raises(ValueError, match="type, all"):
        follow(Space.NODE, "relation")
    assert find_way(Space.RELATION, Space.NODE) is None
