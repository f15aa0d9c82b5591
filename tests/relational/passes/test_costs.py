"""What choices are compared by."""

from shorthaul.relational.passes.costs import ELEMENT_WORK, Cost


def test_costs_add_up():
    assert Cost(3, 4) + Cost(5, 6) == Cost(8, 10)
    assert Cost(3, 4).total(trains=False) == 3 + 4 * ELEMENT_WORK


def test_a_product_has_two_gradients_and_a_traversal_one():
    assert Cost(10, 0).total(trains=True) == 30
    assert Cost(0, 10).total(trains=True) == 20 * ELEMENT_WORK
