"""What a hop of sampling reads of an index."""

import torch

from shorthaul.graphs.sampling.disk_rows import read_rows
from tests.graphs.sampled_graphs import random_graph


def test_rows_in_any_order_with_their_relations() -> None:
    index = random_graph(30, 200, 3, dtype=torch.int32).by_target()
    nodes = torch.tensor([29, 4, 4, 0], dtype=torch.int32)
    ends, relations, row_starts = read_rows(index, nodes, needs_relations=True)
    assert relations is not None
    assert row_starts is not None
    for row, node in enumerate(nodes.tolist()):
        begin, end = index.pointers[node : node + 2].tolist()
        assert ends[2 * row : 2 * row + 2].tolist() == [begin, end]
        own = relations[row_starts[row] : row_starts[row + 1]]
        assert own.tolist() == index.relations[begin:end].tolist()


def test_no_rows() -> None:
    index = random_graph(30, 200, 3).by_target()
    nothing = torch.empty(0, dtype=torch.int64)
    ends, relations, row_starts = read_rows(index, nothing, needs_relations=True)
    assert ends.tolist() == []
    assert relations is not None
    assert row_starts is not None
    assert (relations.tolist(), row_starts.tolist()) == ([], [0])
    assert read_rows(index, nothing, needs_relations=False).relations is None
