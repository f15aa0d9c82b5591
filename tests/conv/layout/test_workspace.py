"""Parts are about equal, and pieces of a workspace begin at cache lines."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.conv.layout.workspace import Workspace, columns_under, even_part
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import forward_task
from shorthaul.jit import CppSource, Function, TensorArgument, load_kernel

STRIDED = ConvProblem(3, 8, (1, 3, 5), (1, 1, 2), (1, 1, 3))


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_parts_are_as_few_as_can_be_and_none_is_much_smaller(total: int, largest: int) -> None:
    size = even_part(total, largest)
    parts = -(-total // size)
    assert size <= max(largest, 1)
    assert parts == -(-total // min(largest, total))
    assert parts * size - total < parts


@given(st.lists(st.tuples(st.sampled_from(["int32_t", "int64_t", "real"]), st.integers(0, 99))))
def test_every_piece_begins_at_a_cache_line_behind_the_one_before(
    pieces: list[tuple[str, int]],
) -> None:
    named = {f"piece{number}": each for number, each in enumerate(pieces)}
    workspace = Workspace(**{name: kind for name, (kind, _) in named.items()})
    carved = workspace.carve(
        8, slack_bytes=64, **{name: count for name, (_, count) in named.items()}
    )
    ends = [*carved.places[1:], carved.thread_bytes - 64]
    for place, end, (kind, count) in (
        zip(carved.places, ends, pieces, strict=True) if pieces else ()
    ):
        room = end - place
        assert place % 64 == 0
        assert 0 <= room - count * {"int32_t": 4}.get(kind, 8) < 64


def test_a_kernel_finds_the_pieces_where_the_plan_put_them() -> None:
    workspace = Workspace(rows="const value*", sums="real", runs="Run")
    carved = workspace.carve(4, rows=3, sums=5, runs=2)
    function = Function(
        "find",
        (
            TensorArgument("memory", torch.uint8, is_written=True),
            TensorArgument("places", torch.int64),
            TensorArgument("found", torch.int64, is_written=True),
        ),
    )
    text = f"""\
struct Value {{ using value = float; }};
using real = float;
struct Run {{ int64_t first, second; }};
{workspace.emit()}
{function.prototype()} {{
  const Workspace at(memory, places);
  found[0] = reinterpret_cast<uint8_t*>(at.rows) - memory;
  found[1] = reinterpret_cast<uint8_t*>(at.sums) - memory;
  found[2] = reinterpret_cast<uint8_t*>(at.runs) - memory;
}}
"""
    found = torch.zeros(3, dtype=torch.int64)
    kernel = load_kernel(CppSource("conv_pieces", text, (function,)))
    kernel.find(torch.zeros(1024, dtype=torch.uint8), torch.tensor(carved.places), found)
    assert tuple(found.tolist()) == carved.places == (0, 64, 128)
    assert carved.thread_bytes == 192


def test_the_pieces_as_a_kernel_has_them() -> None:
    assert (
        Workspace(taps="int64_t", runs="Run").emit()
        == """\
// A thread's workspace; its plan says where each piece begins.
struct Workspace {
  using value = Value::value;
  int64_t* taps;
  Run* runs;
  Workspace(uint8_t* memory, const int64_t* places) : taps(reinterpret_cast<int64_t*>(memory + places[0])), runs(reinterpret_cast<Run*>(memory + places[1])) {}
};
static_assert(sizeof(Run) == 16);
"""
    )


def test_columns_under_outputs_are_those_of_the_windows() -> None:
    task = forward_task(STRIDED, 1, (1, 9, 40))
    reach = (5 - 1) * 3 + 1
    assert columns_under(task, 1) == reach
    assert columns_under(task, 4) == 3 * 2 + reach
