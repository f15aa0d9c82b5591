"""The oracle itself, against sums written out by hand."""

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.backends.reference import run
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import convolve, record


def test_a_convolution_written_out():
    graph = RelationalGraph.from_edges([0, 1, 0, 2], [2, 2, 2, 0], relation=[0, 0, 1, 1])
    topology = Topology.of(graph)
    x, weight = torch.randn(3, 5), torch.randn(2, 5, 3)
    got = run(record(convolve), topology, {"x": x, "weight": weight})["out"]
    expected = torch.stack(
        [
            x[2] @ weight[1],
            torch.zeros(3),
            (x[0] @ weight[0] + x[1] @ weight[0]) / 2 + x[0] @ weight[1],
        ]
    )
    torch.testing.assert_close(got, expected)
