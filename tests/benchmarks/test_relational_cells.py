"""A cell's speed is against its fastest peer; peers without a time are no peers."""

import pytest
import torch

from benchmarks.answer import Answer
from benchmarks.relational_cells import (
    KINDS,
    Peer,
    describe_difference,
    find_best_peers,
    geometric_mean,
    list_cells,
    make_run,
    summarise,
)
from shorthaul.graphs import RelationalGraph
from tests.benchmarks.runs import make_row

ROWS = [
    make_row("RGCN, a, inference", "plain", 8.0),
    make_row("RGCN, a, inference", "better", 4.0),
    make_row("RGCN, a, inference", "shorthaul", 1.0),
    make_row("RGCN, b, inference", "plain", 9.0),
    make_row("RGCN, b, inference", "shorthaul", 1.0),
    make_row("RGCN, a, training", "shorthaul", 1.0),
]


def test_the_fastest_peer_of_each_cell_is_found() -> None:
    found = find_best_peers(ROWS, "inference")
    assert [(case, best["arm"]) for case, (best, _) in found.items()] == [
        ("RGCN, a, inference", "better"),
        ("RGCN, b, inference", "plain"),
    ]
    assert find_best_peers(ROWS, "training") == {}


def test_a_peer_without_a_time_is_not_the_fastest() -> None:
    answer = Answer(rows=ROWS[3:5])
    answer.leave_out("RGCN, b, inference", "fails", "plain", needs_bytes=1)
    (found,) = find_best_peers(answer.rows, "inference").values()
    assert found[0]["arm"] == "plain"


def test_means_are_added_as_rows() -> None:
    answer = Answer(rows=list(ROWS))
    summarise(answer)
    peer, ours = answer.rows[len(ROWS) :]
    assert (peer["case"], peer["arm"]) == ("geometric mean of 2 cells, inference", "best peer")
    assert peer["speedup"]["median"] == pytest.approx(1.0)
    assert ours["speedup"]["median"] == pytest.approx(6.0)
    assert peer["wall_seconds"]["median"] == pytest.approx(6.0)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_differences_beyond_rounding_are_told() -> None:
    one = torch.tensor([1.0, 2.0])
    assert describe_difference([one], [one * (1 + 1e-5)]) == ""
    assert "largest difference 1" in describe_difference([one], [torch.tensor([1.0, 3.0])])
    with pytest.raises(ValueError, match="argument"):
        describe_difference([one], [one, one])


def test_what_a_peer_needs_depends_on_what_it_does() -> None:
    peer = Peer("large", "pyg", {}, inference_bytes=5, training_bytes=10)
    assert (peer.needs_bytes(training=False), peer.needs_bytes(training=True)) == (5, 10)


def test_every_cell_runs_on_a_graph_with_types() -> None:
    graph = RelationalGraph.from_typed_edges(
        {
            ("author", "writes", "paper"): torch.tensor([[0, 1, 1], [2, 2, 0]]),
            ("paper", "of", "author"): torch.tensor([[2, 0], [0, 1]]),
        },
        {"author": 2, "paper": 3},
    )
    x = torch.randn(5, 64)
    cells = {cell.layer: cell for cell in list_cells(graph)}
    assert len(cells) == 8
    for name in ("RGCN two layers", "HGT 4 heads"):
        for kind in KINDS:
            made = make_run(cells[name], x, training=kind == "training")()
            assert [len(each) for each in made] == [5] * len(made)
