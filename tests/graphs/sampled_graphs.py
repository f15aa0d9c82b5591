"""Graphs to sample from, and what a sample must keep to."""

import torch

from shorthaul.graphs import NeighborSample, RelationalGraph


def random_graph(
    nodes: int = 60,
    edges: int = 600,
    relations: int = 1,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.int64,
) -> RelationalGraph:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    relation = torch.randint(relations, (edges,), generator=generator)
    return RelationalGraph.from_edges(
        *ends, relation, num_nodes=nodes, num_relations=relations, index_dtype=dtype
    )


def star(degrees: list[int]) -> RelationalGraph:
    """Node n has `degrees[n]` incoming edges from leaves of its own."""
    targets = torch.repeat_interleave(torch.tensor(degrees))
    sources = torch.arange(len(targets)) + len(degrees)
    return RelationalGraph.from_edges(sources, targets, num_nodes=len(degrees) + len(targets))


def same_samples(one: NeighborSample, other: NeighborSample) -> str:
    """What differs; empty when nothing does."""
    pairs = [("seeds", one.seeds, other.seeds), ("seed_rows", one.seed_rows, other.seed_rows)]
    if len(one.blocks) != len(other.blocks):
        return f"{len(one.blocks)} and {len(other.blocks)} blocks"
    for number, (mine, yours) in enumerate(zip(one.blocks, other.blocks, strict=True)):
        if mine.num_targets != yours.num_targets:
            return f"block {number} has {mine.num_targets} and {yours.num_targets} targets"
        pairs += [
            (f"block {number}: {name}", getattr(mine, name), getattr(yours, name))
            for name in ("source_nodes", "pointers", "sources", "positions")
        ]
    for name, mine_tensor, your_tensor in pairs:
        if mine_tensor.dtype is not your_tensor.dtype or not torch.equal(mine_tensor, your_tensor):
            return f"{name}: {mine_tensor} and {your_tensor}"
    return ""


def verify_sample(graph: RelationalGraph, sample: NeighborSample) -> None:
    """Every edge of a block is an edge of the graph, and blocks fit together."""
    for number, block in enumerate(sample.blocks):
        nodes = block.source_nodes.tolist()
        assert len(set(nodes)) == len(nodes)
        assert block.pointers.tolist()[0] == 0
        assert block.pointers.tolist()[-1] == block.num_edges
        assert len(block.pointers) == block.num_targets + 1
        source, target = block.edge_index()
        assert torch.equal(block.source_nodes[source], graph.source[block.edges.long()])
        assert torch.equal(block.source_nodes[target], graph.target[block.edges.long()])
        assert torch.equal(block.relations, graph.relation[block.edges.long()])
        if number + 1 < len(sample.blocks):
            following = sample.blocks[number + 1]
            assert torch.equal(block.target_nodes, following.source_nodes)
    if sample.blocks:
        assert torch.equal(sample.blocks[-1].target_nodes, sample.seeds)
