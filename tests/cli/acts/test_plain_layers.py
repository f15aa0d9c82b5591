"""What the demo compares with computes the same where PyG is missing."""

from __future__ import annotations

import pytest
import torch

from shorthaul.cli.acts.plain_layers import PlainEdges, plain_rgat, plain_rgcn
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RGATConv, RGCNConv


@pytest.mark.parametrize(("kind", "plain"), [(RGCNConv, plain_rgcn), (RGATConv, plain_rgat)])
def test_plain_layers_compute_what_compiled_ones_do(kind, plain) -> None:
    torch.manual_seed(0)
    sources, targets = torch.randint(20, (2, 100))
    graph = RelationalGraph.from_edge_index(
        torch.stack([sources, targets]), torch.randint(3, (100,)), num_nodes=20
    )
    layer, x = kind(6, 5, 3), torch.randn(20, 6)
    torch.nn.init.normal_(layer.bias)
    torch.testing.assert_close(plain(layer, x, PlainEdges(graph)), layer(x, graph))
