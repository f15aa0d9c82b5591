"""One hop of a sample, drawn for nodes whose rows the caller holds: for topologies that lie in pieces.

The random numbers are those of `NeighborSampler`: they belong to the sample's number, the hop and the node,
so that whoever draws for a node, together with whichever others, draws the same neighbors.

>>> from shorthaul.graphs import NeighborSampler, RelationalGraph
>>> from shorthaul.graphs.sampling.candidates.disk_rows import read_rows
>>> graph = RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 0, 1])
>>> nodes = torch.tensor([0, 1], dtype=graph.index_dtype)
>>> rows = read_rows(graph, Rule(), nodes, by_relation=False)
>>> pointers, positions = OneHop(graph.index_dtype, 4, [[2]], seed=7).draw(nodes, rows, hop=0, number=5)
>>> (block,) = NeighborSampler(graph, [2], seed=7).sample(nodes, number=5).blocks
>>> pointers.equal(block.pointers.long()), positions.equal(block.positions)
(True, True)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from shorthaul.graphs.sampling.candidates.disk_rows import HopRows
from shorthaul.graphs.sampling.candidates.rules import Rule
from shorthaul.graphs.sampling.kernels import HASHED_FROM_NODES, SamplingMemory, require_drawn
from shorthaul.graphs.sampling.plain import GOLDEN, RandomStream, draw, mix
from shorthaul.graphs.sampling.streams import as_signed, choose_key, choose_threads
from shorthaul.jit import can_use_kernels

_MASK = 2**64 - 1


class OneHop:
    """Draws as a uniform sampler without replacement does. For one thread at a time."""

    def __init__(
        self, dtype: torch.dtype, num_nodes: int, fan_outs: Sequence[Sequence[int]], seed: int
    ) -> None:
        self.dtype, self.num_nodes, self.seed = dtype, num_nodes, seed
        most = torch.iinfo(torch.int64).max
        self.fan_outs = [[min(fan, most) for fan in each] for each in fan_outs]
        self._memory: SamplingMemory | None = None

    def draw(
        self, nodes: torch.Tensor, rows: HopRows, *, hop: int, number: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where each node's edges begin, int64, and their positions, as `rows.ends` counts them.

        Args:
            nodes: All different.
            rows: Of these nodes, with relations where fan-outs are for each of them.
            hop: Which one, from 0 on.
            number: Which sample.
        """
        fan, key = self.fan_outs[hop], choose_key(self.seed, number)
        if not can_use_kernels("neighbor sampling"):
            return _draw_plainly(nodes, rows, fan, mix((key + GOLDEN * (hop + 1)) & _MASK))
        memory = self._memory or SamplingMemory(
            self.dtype, self.num_nodes, is_hashed=self.num_nodes >= HASHED_FROM_NODES
        )
        self._memory = memory
        kernel, sampler, threads = memory.kernel, memory.address, choose_threads(None)
        started = kernel.start(sampler, nodes, torch.empty_like(nodes), hop + 1, False, threads)
        require_drawn(started, self.dtype)
        kernel.start_hop(sampler, hop, True, torch.empty(2, dtype=torch.int64, device="cpu"))
        drawn = kernel.draw_hop(
            sampler,
            hop,
            *rows,
            None,
            nodes[:0],
            torch.tensor(fan, dtype=torch.int64, device="cpu"),
            len(fan),
            *Rule().numbers,
            as_signed(key),
            threads,
        )
        edges = require_drawn(drawn, self.dtype)
        offsets, positions = torch.empty_like(nodes), nodes.new_empty(edges)
        unread = torch.empty_like(positions)  # neighbors, which the caller has and not the kernel
        kernel.copy_hop(sampler, hop, 0, offsets, unread, positions)
        return torch.cat([offsets.new_zeros(1), offsets]).long(), positions


def _draw_plainly(
    nodes: torch.Tensor, rows: HopRows, fan: Sequence[int], key: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain Python: where there is no compiler, and to compare with."""
    pointers, positions = [0], list[int]()
    begin_of_row = 0
    for node, (begin, end) in zip(nodes.tolist(), rows.ends.view(-1, 2).tolist(), strict=True):
        stream = RandomStream(key, node)
        runs = [(fan[0], end - begin)]
        if rows.relations is not None:
            own = rows.relations[begin_of_row : begin_of_row + end - begin].tolist()
            runs = [(fan[each], len(list(run))) for each, run in itertools.groupby(own)]
            begin_of_row += end - begin
        for fan_out, degree in runs:
            positions += [begin + at for at in draw(stream, degree, fan_out, replace=False)]
            begin += degree
        pointers.append(len(positions))
    return torch.tensor(pointers, dtype=torch.int64, device="cpu"), torch.tensor(
        positions, dtype=nodes.dtype, device="cpu"
    )
