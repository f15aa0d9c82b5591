"""What the lines of three models are counted of."""

from __future__ import annotations

import torch

from benchmarks.arms.three_layers import LAYERS, WIDTHS, count_lines, count_written, rgcn
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RGCNConv


def documented(
    x: int,
) -> int:
    """What it is.

    And more.
    """
    return x


def test_lines_are_those_that_hold_something() -> None:
    assert count_lines("// what\n\nint a;  // an a\n  # no\n}\n") == 2


def test_docstrings_are_not_counted() -> None:
    assert count_written(documented) == 4


def test_the_short_layer_is_the_real_one() -> None:
    torch.manual_seed(0)
    graph = RelationalGraph.from_edges([0, 1, 2, 2], [1, 1, 0, 1], relation=[0, 0, 1, 2])
    real = RGCNConv(5, 6, 3)
    short = rgcn(relations=3, width=5, out=6)
    with torch.no_grad():
        for name, value in (("weight", real.weight), ("own", real.root), ("bias", real.bias)):
            getattr(short, name).copy_(value)
    x = torch.randn(3, 5)
    torch.testing.assert_close(short(graph, x), real(x, graph))
    assert set(WIDTHS) == {each.function.__name__ for each in LAYERS}
