"""The label: what an expression's form says about the kind of value."""

import ast

import pytest

from shorthaul.datasets.return_kinds import RETURN_KINDS, expression_kind, return_kind


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("None", "nothing"),
        ("True", "truth"),
        ("a < b", "truth"),
        ("not a", "truth"),
        ("isinstance(a, int)", "truth"),
        ("a.startswith('x')", "truth"),
        ("a == b and c in d", "truth"),
        ("a or True", "object"),
        ("-1", "number"),
        ("len(a) + 1", "number"),
        ("a + 2", "number"),
        ("a + b", "object"),
        ("'x'", "text"),
        ("b'x'", "text"),
        ("f'{a}'", "text"),
        ("'%d' % 3", "text"),
        ("', '.join(a)", "text"),
        ("'a' if a else None", "text"),
        ("'a' if a else 1", "object"),
        ("[1]", "collection"),
        ("a, b", "collection"),
        ("{a: b for a in c}", "collection"),
        ("[0] * 3", "collection"),
        ("sorted(a)", "collection"),
        ("a", "object"),
        ("self.a", "object"),
        ("a[0]", "object"),
        ("make(a)", "object"),
        ("make()()", "object"),
        ("...", "object"),
    ],
)
def test_expression_kind(source: str, kind: str) -> None:
    assert expression_kind(ast.parse(source, mode="eval").body) == kind
    assert kind in RETURN_KINDS


@pytest.mark.parametrize(
    ("kinds", "together"),
    [
        ([], "nothing"),
        (["nothing"], "nothing"),
        (["nothing", "text", "text"], "text"),
        (["truth", "text"], "object"),
        (["truth", "object"], "object"),
        (["text", "items in turn"], "items in turn"),
    ],
)
def test_return_kind_of_several(kinds: list[str], together: str) -> None:
    assert return_kind(kinds) == together
