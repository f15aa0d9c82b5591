"""The plain readers, by hand-made examples: others are compared with them."""

from shorthaul.graphs.readers.plain_readers import parse_plain_rows, parse_plain_triples


def test_triples() -> None:
    found = parse_plain_triples(['<a> <b> "c\\u0041" . # x', "", "bad", "_:x. <b> <a> ."])
    assert found.triples == [(0, 0, 1)]
    assert list(found.nodes) == ["a", '"cA"']
    assert found.malformed == [3, 4]


def test_escaped_backslashes_hide_what_follows() -> None:
    found = parse_plain_triples([r'<a> <b> "\\u0041\u0022" .'])
    assert list(found.nodes)[1] == r'"\\u0041\""'


def test_rows() -> None:
    lines = ["1, 2\t3", "# no", "", "4 5 6 7", "4 five 6", "7;8;9"]
    assert list(parse_plain_rows(lines, ("a", None, "b"))) == [
        (1, [1, 3]),
        (4, None),
        (5, [4, 6]),
        (6, [7, 9]),
    ]
