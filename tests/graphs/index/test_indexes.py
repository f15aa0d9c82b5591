"""What each index promises about its parts."""

import torch

from shorthaul.graphs import RelationalGraph


def test_what_an_index_says_of_itself() -> None:
    graph = RelationalGraph.from_edges([0, 0, 1, 0], [1, 2, 2, 2], relation=[0, 1, 1, 1])
    pairs = graph.pairs("source")
    assert pairs.num_pairs == 3
    for pair, node in enumerate(pairs.nodes.tolist()):
        edges = pairs.pair_edges[pairs.pair_pointers[pair] : pairs.pair_pointers[pair + 1]]
        assert set(graph.source[edges.long()].tolist()) == {node}
        assert set(pairs.edge_to_pair[edges.long()].tolist()) == {pair}
    incoming = graph.by_target()
    heard = incoming.sources[incoming.pointers[2] : incoming.pointers[3]]
    assert torch.equal(heard, torch.tensor([0, 1, 0], dtype=torch.int32))
