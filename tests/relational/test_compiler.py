"""The whole compiler: stages, switches, text."""

import pytest
import torch

from shorthaul.relational.compiler import compile_program
from tests.relational.programs import attend, convolve, record, sample_graph, sizes_of


def _compile(**options):
    sizes = sizes_of(sample_graph())
    return compile_program(record(attend), sizes, torch.float32, torch.int32, **options)


def test_every_stage_is_shown():
    text = _compile(gradients=("x",)).text()
    for part in (
        "== as written ==",
        "== compact ==",
        "== differentiate ==",
        "== kernels ==",
        "== generated source ==",
        "void attend_forward_0_value(",
    ):
        assert part in text


def test_a_pass_can_be_left_out():
    with_pairs, without = _compile(), _compile(without=("compact",))
    assert "over source pair" in with_pairs.program.text()
    assert "over source pair" not in without.program.text()


def test_an_unknown_pass_is_refused():
    with pytest.raises(ValueError, match="there are canonicalise"):
        _compile(without=("magic",))


def test_sizes_are_not_in_the_source():
    sources = [
        compile_program(
            record(convolve), sizes_of(sample_graph(edges=edges)), torch.float32, torch.int32
        ).cpp.source
        for edges in (40, 70)
    ]
    assert sources[0] == sources[1]
