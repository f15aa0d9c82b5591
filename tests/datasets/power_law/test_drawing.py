"""Edges, labels and rows that follow from their numbers."""

import pytest
import torch

from shorthaul.datasets.power_law.drawing import (
    Recipe,
    draw_edges,
    draw_edges_plainly,
    draw_labels,
    draw_labels_plainly,
    draw_rows,
    draw_rows_plainly,
)

RECIPE = Recipe(nodes=1000, relations=3, skew=2, classes=7, width=5, seed=9)


@pytest.mark.parametrize("nodes", [1, 2, 3, 1000, 2**33])
@pytest.mark.parametrize("skew", [1, 2, 3])
def test_kernels_draw_what_plain_python_does(nodes: int, skew: int) -> None:
    recipe = Recipe(nodes, relations=3, skew=skew, classes=7, width=5, seed=-1)
    first = 2**40
    for drawn, plain in zip(
        draw_edges(recipe, first, 50), draw_edges_plainly(recipe, first, 50), strict=True
    ):
        assert torch.equal(drawn, plain)
        assert drawn.min() >= 0
    labels, purposes = draw_labels(recipe, first, 50)
    plain_labels, plain_purposes = draw_labels_plainly(recipe, first, 50)
    assert torch.equal(labels, plain_labels)
    assert torch.equal(purposes, plain_purposes)
    assert torch.equal(draw_rows(recipe, first, 50), draw_rows_plainly(recipe, first, labels))


@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_and_threads_make_no_difference(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = draw_edges(RECIPE, 0, 20_000)
        parts = [draw_edges(RECIPE, start, 700) for start in range(0, 19_600, 700)]
        rows = draw_rows(RECIPE, 0, 1000)
    finally:
        torch.set_num_threads(before)
    for number, column in enumerate(whole):
        assert torch.equal(torch.cat([each[number] for each in parts]), column[:19_600])
    assert torch.equal(torch.cat([draw_rows(RECIPE, at, 10) for at in range(0, 1000, 10)]), rows)


def test_degrees_follow_the_power_law_that_is_told() -> None:
    """With skew 2 a share s of the nodes, those with most edges, has the square root of s of them."""
    edges = 400_000
    degrees = torch.bincount(draw_edges(RECIPE, 0, edges).source, minlength=1000)
    largest = degrees.sort(descending=True).values
    for share in (0.01, 0.04, 0.25):
        held = int(largest[: round(1000 * share)].sum()) / edges
        assert held == pytest.approx(share**0.5, abs=0.01)
    assert int(largest[-1]) > 0.4 * edges / 1000  # the fewest are half as many as on average
    flat = Recipe(nodes=1000, relations=1, skew=1, classes=1, width=0, seed=0)
    degrees = torch.bincount(draw_edges(flat, 0, edges).target, minlength=1000)
    assert 0.7 < int(degrees.min()) * 1000 / edges < int(degrees.max()) * 1000 / edges < 1.3


def test_popular_nodes_are_not_side_by_side_and_are_the_same_at_both_ends() -> None:
    source, target, _ = draw_edges(RECIPE, 0, 200_000)
    hot = torch.bincount(source, minlength=1000).topk(20).indices
    assert set(hot.tolist()[:5]) == set(
        torch.bincount(target, minlength=1000).topk(5).indices.tolist()
    )
    assert int((hot.sort().values.diff() == 1).sum()) <= 2


def test_labels_are_even_and_rows_tell_them() -> None:
    labels, purposes = draw_labels(RECIPE, 0, 1000)
    assert set(labels.tolist()) == set(range(7))
    assert 0 <= int(purposes.min()) < 2**55 < int(purposes.max())
    rows = draw_rows(RECIPE, 0, 1000)
    own = rows[torch.arange(1000), labels % 5]
    assert -0.1 < float(rows.sum() - own.sum()) / 4000 < 0.1
    assert 0.9 < float(own.mean()) < 1.1
    assert float(rows.min()) >= -1
    assert float(rows.max()) < 2
