"""What a hop of sampling reads of an index."""

import torch

from shorthaul.graphs.sampling.candidates.disk_rows import read_rows
from shorthaul.graphs.sampling.candidates.rules import Rule
from tests.graphs.sampled_graphs import random_graph


def test_rows_in_any_order_with_their_relations() -> None:
    graph = random_graph(30, 200, 3, dtype=torch.int32)
    index = graph.by_target()
    nodes = torch.tensor([29, 4, 4, 0], dtype=torch.int32)
    ends, relations, row_starts, *others = read_rows(graph, Rule(), nodes, by_relation=True)
    assert others == [None] * 5
    assert relations is not None
    assert row_starts is not None
    for row, node in enumerate(nodes.tolist()):
        begin, end = index.pointers[node : node + 2].tolist()
        assert ends[2 * row : 2 * row + 2].tolist() == [begin, end]
        own = relations[row_starts[row] : row_starts[row + 1]]
        assert own.tolist() == index.relations[begin:end].tolist()


def test_no_rows() -> None:
    graph = random_graph(30, 200, 3)
    nothing = torch.empty(0, dtype=torch.int64)
    ends, relations, row_starts, *_ = read_rows(graph, Rule(), nothing, by_relation=True)
    assert ends.tolist() == []
    assert relations is not None
    assert row_starts is not None
    assert (relations.tolist(), row_starts.tolist()) == ([], [0])
    assert read_rows(graph, Rule(), nothing, by_relation=False).relations is None


def test_rows_by_time_with_their_weights_and_sources() -> None:
    graph = random_graph(30, 200, 3, dtype=torch.int32)
    generator = torch.Generator().manual_seed(3)
    rule = Rule(
        "weighted",
        weights=torch.rand(200, generator=generator),
        node_times=torch.randint(50, (30,), generator=generator),
        edge_times=torch.randint(50, (200,), generator=generator),
    )
    nodes = torch.tensor([7, 3], dtype=torch.int32)
    rows = read_rows(graph, rule, nodes, by_relation=False)
    assert rows.relations is None
    assert rows.row_starts is not None
    assert rows.order is not None
    assert rows.times is not None
    assert rows.cumulative is not None
    assert rows.sources is not None
    index = graph.by_target()
    for row, node in enumerate(nodes.tolist()):
        begin, end = index.pointers[node : node + 2].tolist()
        edges, sources = index.edges[begin:end].long(), index.sources[begin:end]
        assert rule.edge_times is not None
        assert rule.node_times is not None
        times = torch.maximum(rule.edge_times[edges], rule.node_times[sources]).tolist()
        own = slice(int(rows.row_starts[row]), int(rows.row_starts[row + 1]))
        expected = sorted(range(end - begin), key=lambda at: times[at])
        assert rows.order[own].tolist() == expected
        assert rows.times[own].tolist() == sorted(times)
        assert rows.sources[own].tolist() == sources.tolist()
        assert rule.weights is not None
        sums = torch.cumsum(rule.weights[edges[expected]].double(), 0)
        assert torch.allclose(rows.cumulative[own], sums, rtol=1e-12)
