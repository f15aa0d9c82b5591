"""Parts are about equal, and pieces of a workspace begin at cache lines."""

from hypothesis import given
from hypothesis import strategies as st

from shorthaul.conv.layout.workspace import block_bytes, carved_bytes, columns_under, even_part
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import forward_task

STRIDED = ConvProblem(3, 8, (1, 3, 5), (1, 1, 2), (1, 1, 3))


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_parts_are_as_few_as_can_be_and_none_is_much_smaller(total: int, largest: int) -> None:
    size = even_part(total, largest)
    parts = -(-total // size)
    assert size <= max(largest, 1)
    assert parts == -(-total // min(largest, total))
    assert parts * size - total < parts


@given(st.lists(st.integers(0, 1000)))
def test_every_piece_begins_at_a_cache_line(pieces: list[int]) -> None:
    size = carved_bytes(*pieces)
    assert size % 64 == 0
    assert sum(pieces) <= size < sum(pieces) + 64 * max(1, len(pieces))


def test_columns_under_outputs_are_those_of_the_windows() -> None:
    task = forward_task(STRIDED, 1, (1, 9, 40))
    reach = (5 - 1) * 3 + 1
    assert columns_under(task, 1) == reach
    assert columns_under(task, 4) == 3 * 2 + reach


def test_a_block_has_room_for_the_sums_of_its_pixels() -> None:
    task = forward_task(STRIDED, 1, (1, 9, 40))
    few, many = (block_bytes(task, pixels, 10, 32) for pixels in (64, 128))
    assert many - few == 64 * (32 * 4 + 8 + 8)  # sums, and where a window and an output lie
