"""`sh.explain` asks whatever can tell how it came to be."""

import pytest

import shorthaul as sh
from shorthaul.errors import ExplainError
from shorthaul.explain import Explainable, explain


class Layer:
    """Something that was made in stages."""

    def explain(self) -> str:
        return "program, then kernel"


def test_whatever_has_stages_is_asked() -> None:
    assert explain(Layer()) == "program, then kernel"
    assert isinstance(Layer(), Explainable)


@pytest.mark.parametrize("subject", [42, None, "kernel", Layer], ids=repr)
def test_anything_else_is_an_error_that_shows_it(subject: object) -> None:
    with pytest.raises(ExplainError) as caught:
        explain(subject)
    assert str(caught.value) == (
        f"cannot explain {subject!r}: expected something that shorthaul made, such as a kernel."
    )
    assert isinstance(caught.value, TypeError)


def test_it_is_in_the_catalog() -> None:
    assert sh.explain is explain
