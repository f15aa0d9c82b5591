"""Relations are named by three words."""

from shorthaul.graphs import Relation


def test_a_relation_is_its_three_words() -> None:
    writes = Relation("author", "writes", "paper")
    assert writes == ("author", "writes", "paper")
    assert str(writes) == "author writes paper"
    assert writes.reversed() == ("paper", "writes_reversed", "author")
