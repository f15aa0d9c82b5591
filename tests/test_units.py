"""Bytes and seconds as people write and read them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "count_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096 B", 4096),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1.5 MB", 1_500_000),
        ("1.5MiB", 1_572_864),
        ("4GiB", 4_294_967_296),
        ("4 gib", 4_294_967_296),
        ("  2 TB  ", 2_000_000_000_000),
        ("1TiB", 1_099_511_627_776),
        ("0.1 B", 0),
    ],
)
def test_text_is_read(text: str, count_bytes: int) -> None:
    assert parse_bytes(text) == count_bytes


@given(st.integers(min_value=0, max_value=2**70))
def test_whole_numbers_are_exact_as_numbers_and_as_text(count_bytes: int) -> None:
    assert parse_bytes(count_bytes) == count_bytes
    assert parse_bytes(str(count_bytes)) == count_bytes


def test_integers_of_numpy_are_integers() -> None:
    parsed = parse_bytes(np.int64(4096))
    assert parsed == 4096
    assert type(parsed) is int


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1e9", "4 gigabytes", "1.GiB", "1,000", "4 G", "٤", "inf", "nan"]
)
def test_text_that_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes such as 4096, '512 MB' or '4GiB', got"):
        parse_bytes(text)


@pytest.mark.parametrize("value", [1.5, True, None, b"4096"])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected bytes such as"):
        parse_bytes(value)  # type: ignore[arg-type]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a size in bytes cannot be negative, got -1"):
        parse_bytes(-1)


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1023.7, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**20, "1.0 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (44_237_291_520, "41.2 GiB"),
        (3 * 2**40, "3.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
        (-(2**21), "-2.0 MiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_fitting_unit(count_bytes: float, text: str) -> None:
    assert format_bytes(count_bytes) == text


@given(st.integers(min_value=0, max_value=2**49))
def test_bytes_shown_can_be_read_back(count_bytes: int) -> None:
    shown = format_bytes(count_bytes)
    # One digit after the point: half a tenth of the unit is the most that can be lost.
    assert abs(parse_bytes(shown) - count_bytes) <= 0.05 * parse_bytes("1" + shown.split()[1]) + 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (7e-9, "7 ns"),
        (999.6e-9, "1.0 us"),
        (1.5e-5, "15.0 us"),
        (0.99996e-3, "1.0 ms"),
        (0.25, "250.0 ms"),
        (0.99999, "1.0 s"),
        (1, "1.0 s"),
        (3725.04, "3725.0 s"),
        (-0.5, "-500.0 ms"),
    ],
)
def test_seconds_are_shown_in_a_readable_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
