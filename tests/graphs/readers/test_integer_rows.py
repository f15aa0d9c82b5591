"""Lines of whole numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shorthaul as sh
from shorthaul.errors import GraphFileError
from shorthaul.graphs.readers.integer_rows import read_integer_rows
from shorthaul.graphs.readers.plain_readers import parse_plain_rows

PAIR = ("source", "target")


def write(tmp_path, text):
    path = tmp_path / "rows"
    path.write_text(text)
    return path


@pytest.fixture(params=["generated", "torch"])
def both_ways(request):
    with sh.settings.override(kernels=request.param):
        yield request.param


def test_any_separator_and_comments(tmp_path, both_ways) -> None:
    text = "# head\n% more\n1 2\n3\t4\r\n5,6\n 7 , 8 \n\n9;10;\n-1 +2"
    found = read_integer_rows(write(tmp_path, text), PAIR)
    assert found.rows.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [-1, 2]]
    assert found.skipped_lines == 0
    assert found.rows.dtype is torch.int64


def test_columns_are_named_and_passed_over(tmp_path, both_ways) -> None:
    path = write(tmp_path, "1 0.5 2\n3 x 4\n")
    assert read_integer_rows(path, ("a", None, "b")).rows.tolist() == [[1, 2], [3, 4]]


def test_a_header_is_passed_over(tmp_path, both_ways) -> None:
    path = write(tmp_path, "a b\n1 2\n")
    assert read_integer_rows(path, PAIR, has_header=True).rows.tolist() == [[1, 2]]
    only = write(tmp_path, "a b")
    assert read_integer_rows(only, PAIR, has_header=True).rows.shape == (0, 2)


@pytest.mark.parametrize("text", ["", "\n\n", "#\n"])
def test_nothing(tmp_path, both_ways, text) -> None:
    assert read_integer_rows(write(tmp_path, text), PAIR).rows.shape == (0, 2)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("1 2\n3", 2, "expected 2 fields (source target), got 1."),
        (
            "1 2 3",
            1,
            "expected 2 fields (source target), got more.\n"
            "  Name every field in `columns=`, with None for one to pass over.",
        ),
        ("1 two", 1, "expected a whole number as its target, field 2."),
        ("1 2.5", 1, "expected a whole number as its target, field 2."),
        ("1 -", 1, "expected a whole number as its target, field 2."),
        ("1 9223372036854775808", 1, "expected a number below 2**63 as its target, field 2."),
    ],
)
def test_a_malformed_line_is_named(tmp_path, text, line, problem) -> None:
    path = write(tmp_path, text)
    with pytest.raises(GraphFileError) as caught:
        read_integer_rows(path, PAIR)
    assert str(caught.value) == f"{path}, line {line}: {problem}"
    with sh.settings.override(kernels="torch"), pytest.raises(GraphFileError, match=f"line {line}"):
        read_integer_rows(path, PAIR)


def test_the_line_of_a_later_block_is_right(tmp_path) -> None:
    path = write(tmp_path, "head er\n" + "1 2\n" * 100 + "oops\n")
    with pytest.raises(GraphFileError, match="line 102"):
        read_integer_rows(path, PAIR, has_header=True, block_bytes=32)


def test_malformed_lines_are_skipped_and_counted(tmp_path, both_ways) -> None:
    found = read_integer_rows(write(tmp_path, "1 2\nx\n3 4\n5\n"), PAIR, strict=False)
    assert found.rows.tolist() == [[1, 2], [3, 4]]
    assert found.skipped_lines == 2


@given(st.text("0123 ,\t-#x\n", max_size=60), st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_as_the_plain_reader_reads_it(tmp_path_factory, text, block_bytes) -> None:
    path = write(tmp_path_factory.getbasetemp(), text)
    found = read_integer_rows(path, PAIR, strict=False, block_bytes=block_bytes)
    plain = list(parse_plain_rows(text.split("\n"), PAIR))
    assert found.rows.tolist() == [row for _, row in plain if row is not None]
    assert found.skipped_lines == sum(row is None for _, row in plain)
