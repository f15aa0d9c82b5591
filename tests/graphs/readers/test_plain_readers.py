"""The plain readers, by hand-made examples: others are compared with them."""

import pytest

import shorthaul as sh
from shorthaul.errors import GraphFileError
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


@pytest.mark.parametrize("kernels", ["generated", "torch"])
@pytest.mark.parametrize("escape", ["\\UFFFFFFFF", "\\U00110000", "\\uD800"])
def test_an_escape_that_is_no_character(tmp_path, kernels, escape) -> None:
    for term in (f"<a:{escape}>", f'"{escape}"', f'"3"^^<a:{escape}>'):
        path = tmp_path / "x.nt"
        path.write_text(f"<a:a> <a:b> {term} .\n")
        with sh.settings.override(kernels=kernels), pytest.raises(GraphFileError, match="line 1"):
            sh.RelationalGraph.read(path)


@pytest.mark.parametrize("kernels", ["generated", "torch"])
def test_numbers_of_thousands_of_digits(tmp_path, kernels) -> None:
    path = tmp_path / "x.txt"
    path.write_text("0" * 5000 + "3 " + "4\n")
    with sh.settings.override(kernels=kernels):
        assert sh.RelationalGraph.read(path, "edge_list").source.tolist() == [3]
        path.write_text("9" * 5000 + " 4\n")
        with pytest.raises(GraphFileError, match="line 1"):
            sh.RelationalGraph.read(path, "edge_list")
