"""Cells run our layers as the peers' script runs theirs."""

import pytest
import torch

from benchmarks.arms.relational_cells import Peer, describe_difference, list_cells, make_run
from benchmarks.rendering.relational_rows import KINDS
from shorthaul.graphs import RelationalGraph


def test_differences_beyond_rounding_are_told() -> None:
    one = torch.tensor([1.0, 2.0])
    assert describe_difference([one], [one * (1 + 1e-5)]) == ""
    assert describe_difference([one], [one * 1.005], most_edges=0) != ""
    assert describe_difference([one], [one * 1.005], most_edges=100_000) == ""
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
