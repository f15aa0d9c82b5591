"""Which layers may be given averages, and which do not run over parts at all."""

from __future__ import annotations

from typing import Any

import pytest

from shorthaul import relational
from shorthaul.distributed.whole_graph.layer_kinds import require_local, takes_averages
from shorthaul.errors import LayerArgumentError

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


class OfSomebody(relational.SAGEConv):
    """What a layer of one's own does with rows is not known."""


def test_layers_that_add_up_take_averages() -> None:
    sage = relational.SAGEConv
    for layer, expected in (
        (relational.RGCNConv(4, 4, 2), True),
        (relational.RGCNConv(4, 4, 2, aggr="max"), False),
        (relational.RGATConv(4, 4, 2), False),
        (sage(4, 4, aggr="add"), True),
        (sage(4, 4, aggr="max"), False),
        (sage(4, 4, project=True), False),
        (OfSomebody(4, 4), False),
        (relational.GATConv(4, 4), False),
        (relational.HeteroConv({CITES: sage(4, 4), WRITES: sage(4, 4)}), True),
        (relational.HeteroConv({CITES: sage(4, 4), WRITES: sage(4, 4, aggr="min")}), False),
    ):
        assert takes_averages(layer) is expected, layer


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (relational.GCNConv(4, 4), "GCNConv divides by degrees of sources"),
        (relational.HeteroConv({CITES: relational.GCNConv(4, 4)}), "GCNConv divides by degrees"),
        (relational.CompGCNConv(4, 4, 2), "CompGCNConv divides by degrees of sources"),
        (relational.HeteroConv({WRITES: relational.GATConv((4, 4), 4)}), "add_self_loops=False"),
    ],
)
def test_layers_that_ask_for_more_are_refused(layer: Any, said: str) -> None:
    with pytest.raises(LayerArgumentError, match=said):
        require_local(layer)


def test_a_convolution_that_does_not_normalize_runs() -> None:
    require_local(relational.GCNConv(4, 4, normalize=False))
    require_local(relational.HeteroConv({CITES: relational.GATConv((4, 4), 4)}))
