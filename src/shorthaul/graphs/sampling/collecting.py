"""What a kernel sampled, copied out of its memory into blocks whose tensors share one allocation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.blocks import Block, NeighborSample
from shorthaul.graphs.sampling.kernels import SamplingMemory
from shorthaul.graphs.sampling.plain_sample import DrawnHop


def collect_sample(
    memory: SamplingMemory,
    graph: RelationalGraph,
    seed_rows: torch.Tensor,
    number: int,
    counts: Sequence[int],
    *,
    resample: bool,
    disjoint: bool,
    allocate: Callable[[int], torch.Tensor],
) -> NeighborSample:
    """The sample in `memory`; `counts` are the seeds, then nodes and edges after each hop."""
    hops, index = len(counts) // 2, graph.by_target()
    seeds, nodes, edges = counts[0], [counts[0], *counts[1::2]], counts[2::2]
    firsts = [0] * hops if resample else [0, *nodes[: hops - 1]][:hops]
    targets = [known - first for known, first in zip(nodes[:hops], firsts, strict=True)]
    parts = hops if resample else min(hops, 1)
    needed = nodes[-1] * (2 if disjoint else 1) + sum(targets) + parts + 2 * sum(edges)
    arena = _Arena(allocate(needed))
    all_nodes = arena.take(nodes[-1])
    memory.kernel.copy_nodes(memory.address, 0, all_nodes)
    trees = None
    if disjoint:
        trees = arena.take(nodes[-1])
        memory.kernel.copy_trees(memory.address, trees)
    blocks: list[Block] = []
    if resample:
        for hop in range(hops):
            pointers, sources, positions = (
                arena.take(count) for count in (targets[hop] + 1, edges[hop], edges[hop])
            )
            pointers[0] = 0
            memory.kernel.copy_hop(memory.address, hop, 0, pointers[1:], sources, positions)
            known = all_nodes[: nodes[hop + 1]]
            blocks.append(Block(known, nodes[hop], pointers, sources, positions, index))
    elif hops:
        sizes, stop = (nodes[hops - 1] + 1, sum(edges), sum(edges)), 0
        pointers, sources, positions = map(arena.take, sizes)
        pointers[0] = 0
        for hop in range(hops):
            start, stop = stop, stop + edges[hop]
            memory.kernel.copy_hop(
                memory.address,
                hop,
                start,
                pointers[1 + firsts[hop] : 1 + nodes[hop]],
                sources[start:stop],
                positions[start:stop],
            )
            blocks.append(
                Block(
                    all_nodes[: nodes[hop + 1]],
                    nodes[hop],
                    pointers[: nodes[hop] + 1],
                    sources[:stop],
                    positions[:stop],
                    index,
                )
            )
    return NeighborSample(all_nodes[:seeds], seed_rows, blocks[::-1], number, trees)


def collect_plainly(
    graph: RelationalGraph,
    given: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    hops: Sequence[DrawnHop],
    number: int,
    *,
    resample: bool,
    disjoint: bool,
) -> NeighborSample:
    """The same from what plain Python sampled: (tree, node) pairs, distinct seeds first."""

    def tensor(numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=graph.index_dtype, device="cpu")

    index = graph.by_target()
    all_nodes = tensor([node for _, node in pairs])
    trees = tensor([tree for tree, _ in pairs]) if disjoint else None
    rows = {pair: row for row, pair in enumerate(pairs)}
    seed_rows = [rows[at if disjoint else 0, node] for at, node in enumerate(given)]
    blocks: list[Block] = []
    pointers, sources, positions = [0], list[int](), list[int]()
    for hop in hops:
        if resample:
            pointers, sources, positions = [0], [], []
        base = len(sources)
        pointers = pointers + [base + each for each in hop.pointers[1:]]
        sources, positions = sources + hop.sources, positions + hop.positions
        known = all_nodes[: hop.num_nodes]
        columns = [tensor(each) for each in (pointers, sources, positions)]
        blocks.append(Block(known, len(pointers) - 1, columns[0], columns[1], columns[2], index))
    seeds = all_nodes[: len(given) if disjoint else len(set(given))]
    return NeighborSample(seeds, tensor(seed_rows), blocks[::-1], number, trees)


class _Arena:
    """One allocation, dealt out front to back."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory, self._used = memory, 0

    def take(self, count: int) -> torch.Tensor:
        start, self._used = self._used, self._used + count
        return self._memory[start : self._used]
