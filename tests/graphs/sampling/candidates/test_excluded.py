"""Edge ids to positions in the index by target."""

import torch

from shorthaul.graphs.sampling.candidates.excluded import find_positions
from tests.graphs.sampled_graphs import random_graph


def test_every_edge_is_found_also_on_disk(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph = random_graph(20, 500, 4, dtype=torch.int32)
    graph.save(tmp_path)
    edges = graph.by_target().edges
    for each in (graph, type(graph).open(tmp_path)):
        for some in ([], [0], range(500), [3, 3, 499], torch.randperm(500)[:100]):
            wanted = set(some.tolist() if isinstance(some, torch.Tensor) else some)
            found = find_positions(each, some)
            assert found.dtype is torch.int32
            assert found.tolist() == sorted(found.tolist())
            assert {int(edges[at]) for at in found} == wanted
