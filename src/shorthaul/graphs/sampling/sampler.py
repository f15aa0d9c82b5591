"""`NeighborSampler`: seeds in, compact blocks out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from shorthaul.errors import SamplingError, SeedRangeError
from shorthaul.graphs.edge_tensors import read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.index.indexes import TargetIndex
from shorthaul.graphs.sampling.blocks import Block, NeighborSample
from shorthaul.graphs.sampling.disk_rows import read_rows
from shorthaul.graphs.sampling.fan_outs import FanOut, read_fan_outs
from shorthaul.graphs.sampling.kernels import HASHED_FROM_NODES, SamplingMemory
from shorthaul.graphs.sampling.plain import GOLDEN, mix, sample_plainly
from shorthaul.jit import can_use_kernels
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import kernel_threads
from shorthaul.storage import NO_LIMIT_BYTES, BufferPool
from shorthaul.tensors import UnifiedTensor

_MASK, _MOST = 2**64 - 1, 2**63 - 1
# Below this, malloc has warm memory; above, it maps fresh pages, and faulting them in costs as much
# as the sampling.
_POOLED_FROM_BYTES = 64 * 1024
_MOST_THREADS = 1024


class NeighborSampler:
    """Draws neighbors hop by hop from the seeds outwards, in generated C++ without the GIL.

    >>> import torch
    >>> from shorthaul.graphs import NeighborSampler, RelationalGraph
    >>> graph = RelationalGraph.from_edges([1, 2, 3, 4, 4], [0, 0, 0, 1, 2])
    >>> sampler = NeighborSampler(graph, [2, 1], seed=7)
    >>> sample = sampler.sample(torch.tensor([0]))
    >>> sample.blocks  # the first layer's block, then the second's
    [Block(4 sources, 3 targets, 2 edges), Block(3 sources, 1 targets, 2 edges)]
    >>> sample.seeds.tolist(), sample.blocks[-1].target_nodes.tolist()
    ([0], [0])

    `fan_outs` says how many incoming edges are followed: first from the seeds, then from their
    neighbors, and so on (PyG's order; DGL's is the reverse). An entry is a number for all relations
    together, -1 for all edges, or a mapping with a number for each relation (by its name, its three
    words or its number).

    Without `replace`, every set of neighbors of that size is equally likely. With `resample`, every
    layer draws anew for all of its targets, as in DGL; without, a node keeps the neighbors that it
    got first, as in PyG, which takes less time and brings fewer nodes.

    The same `seed` and the same number of a sample give the same blocks, on any number of threads.
    Threads may share a sampler.
    """

    @outside_graphs
    def __init__(
        self,
        graph: RelationalGraph,
        fan_outs: Sequence[FanOut],
        *,
        replace: bool = False,
        resample: bool = True,
        seed: int = 0,
    ) -> None:
        self.graph, self.replace, self.resample = graph, bool(replace), bool(resample)
        self.fan_outs = read_fan_outs(graph, fan_outs)
        self.seed = _read_seed(seed)
        self._start()

    def _start(self) -> None:
        widths = [len(each) for each in self.fan_outs]
        width = max(widths, default=1)
        # No row has more neighbors than an int64 counts, so what is beyond means all of them.
        padded = [
            [*(min(fan, _MOST) for fan in each), *[0] * (width - len(each))]
            for each in self.fan_outs
        ]
        self._fans = torch.tensor(padded, dtype=torch.int64, device="cpu").reshape(
            len(padded), width
        )
        self._widths = torch.tensor(widths, dtype=torch.int64, device="cpu")
        self._numbers = itertools.count()
        self._idle: list[SamplingMemory] = []  # append and pop are atomic: no lock to fork with
        self._pool = BufferPool(NO_LIMIT_BYTES, why="sampled blocks")

    @outside_graphs
    def sample(
        self, seeds: Any, *, number: int | None = None, threads: int | None = None
    ) -> NeighborSample:
        """The blocks around `seeds`, node ids of any integer dtype; repeated ones count once.

        `number` says which sample of this sampler it is, and so which random numbers it gets; samples
        are counted from 0 where it is left out. `threads` defaults to PyTorch's.
        """
        graph = self.graph
        index = graph.by_target()
        given = self.require_seeds(seeds)
        number = next(self._numbers) if number is None else number
        threads = _choose_threads(threads)
        held = _held_tensors(index, needs_relations=self._fans.shape[1] > 1)
        if not can_use_kernels("neighbor sampling"):
            return self.sample_plainly(given, number)
        memory = self._idle.pop() if self._idle else self._make_memory()
        try:
            if held is None:
                return self._sample_from_disk(memory, index, given, number, threads)
            return self._sample(memory, held, given, number, threads)
        finally:
            self._idle.append(memory)

    def _key_of(self, number: int) -> int:
        """What all random numbers of a sample are drawn from."""
        return mix((mix(self.seed) + GOLDEN * (number + 1)) & _MASK)

    def _make_memory(self) -> SamplingMemory:
        nodes = self.graph.num_nodes
        return SamplingMemory(self.graph.index_dtype, nodes, is_hashed=nodes >= HASHED_FROM_NODES)

    def require_seeds(self, seeds: Any) -> torch.Tensor:
        """`seeds` in the graph's dtype; `SeedRangeError` names one that is no node."""
        given = read_numbers(seeds, "seeds")
        nodes = self.graph.num_nodes
        if given.numel():
            low, high = (int(each) for each in torch.aminmax(given))
            if low < 0 or high >= nodes:
                position = int(torch.nonzero((given < 0) | (given >= nodes))[0])
                raise SeedRangeError(int(given[position]), position, nodes)
        return given.to(self.graph.index_dtype).contiguous()

    def _sample(
        self,
        memory: SamplingMemory,
        held: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        seeds: torch.Tensor,
        number: int,
        threads: int,
    ) -> NeighborSample:
        hops = len(self.fan_outs)
        seed_rows = torch.empty_like(seeds)
        counts = torch.empty(1 + 2 * hops, dtype=torch.int64, device="cpu")
        status = memory.kernel.sample(
            memory.address,
            *held,
            seeds,
            seed_rows,
            self._fans,
            self._widths,
            counts,
            self.replace,
            self.resample,
            _as_signed(self._key_of(number)),
            threads,
        )
        self._require_sampled(-1 if status > 0 else status)
        return self._collect(memory, seed_rows, number, counts.tolist())

    def _sample_from_disk(
        self,
        memory: SamplingMemory,
        index: TargetIndex,
        seeds: torch.Tensor,
        number: int,
        threads: int,
    ) -> NeighborSample:
        """Hop by hop: read the targets' rows, draw, read the neighbors that were drawn, relabel."""
        kernel, sampler = memory.kernel, memory.address
        key = _as_signed(self._key_of(number))
        seed_rows, targets = (
            torch.empty_like(seeds),
            torch.empty(2, dtype=torch.int64, device="cpu"),
        )
        hops = len(self.fan_outs)
        counts = [self._require_sampled(kernel.start(sampler, seeds, seed_rows, hops, threads))]
        for hop, fan in enumerate(self.fan_outs):
            kernel.start_hop(sampler, hop, self.resample, targets)
            first, count = targets.tolist()
            nodes = seeds.new_empty(count)
            kernel.copy_nodes(sampler, first, nodes)
            rows = read_rows(index, nodes, needs_relations=len(fan) > 1)
            edges = self._require_sampled(
                kernel.draw_hop(
                    sampler, hop, *rows, self._fans[hop], len(fan), self.replace, key, threads
                )
            )
            positions = seeds.new_empty(edges)
            kernel.copy_positions(sampler, hop, positions)
            sources = index.sources[positions]
            counts += [self._require_sampled(kernel.relabel_hop(sampler, hop, sources)), edges]
        return self._collect(memory, seed_rows, number, counts)

    def _require_sampled(self, status: int) -> int:
        """What a step of the kernel counted; its error where that is negative."""
        if status == -2:
            raise MemoryError(
                "there was no memory for a sample of neighbors: lower the fan-outs or the number of "
                "seeds"
            )
        if status < 0:
            raise self._too_many_edges()
        return status

    def _too_many_edges(self) -> SamplingError:
        return SamplingError(
            f"the sample has more edges than {self.graph.index_dtype} can count.\n"
            "  Lower the fan-outs or the number of seeds, or make the graph with int64 indexes."
        )

    def _collect(
        self,
        memory: SamplingMemory,
        seed_rows: torch.Tensor,
        number: int,
        counts: list[int],
    ) -> NeighborSample:
        """Copy the sample out of the kernel's memory, into tensors that share one allocation."""
        hops, index = len(self.fan_outs), self.graph.by_target()
        seeds, nodes, edges = counts[0], [counts[0], *counts[1::2]], counts[2::2]
        firsts = [0] * hops if self.resample else [0, *nodes[: hops - 1]][:hops]
        targets = [known - first for known, first in zip(nodes[:hops], firsts, strict=True)]
        parts = hops if self.resample else min(hops, 1)
        needed = nodes[-1] + sum(targets) + parts + 2 * sum(edges)
        arena = _Arena(self._allocate(needed))
        all_nodes = arena.take(nodes[-1])
        memory.kernel.copy_nodes(memory.address, 0, all_nodes)
        blocks: list[Block] = []
        if self.resample:
            for hop in range(hops):
                pointers, sources, positions = (
                    arena.take(count) for count in (targets[hop] + 1, edges[hop], edges[hop])
                )
                pointers[0] = 0
                memory.kernel.copy_hop(memory.address, hop, 0, pointers[1:], sources, positions)
                blocks.append(
                    Block(
                        all_nodes[: nodes[hop + 1]], nodes[hop], pointers, sources, positions, index
                    )
                )
        elif hops:
            pointers, sources, positions = (
                arena.take(count) for count in (nodes[hops - 1] + 1, sum(edges), sum(edges))
            )
            pointers[0] = 0
            stop = 0
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
        return NeighborSample(all_nodes[:seeds], seed_rows, blocks[::-1], number)

    def sample_plainly(self, seeds: Any, number: int) -> NeighborSample:
        """The same sample in plain Python: where there is no compiler, and to compare with."""
        index, key = self.graph.by_target(), self._key_of(number)
        seeds = self.require_seeds(seeds)
        given = seeds.tolist()
        try:
            nodes, hops = sample_plainly(
                index, given, self.fan_outs, key, replace=self.replace, resample=self.resample
            )
        except OverflowError as error:
            raise self._too_many_edges() from error
        all_nodes = seeds.new_tensor(nodes)
        rows = {node: row for row, node in enumerate(dict.fromkeys(given))}
        blocks: list[Block] = []
        pointers, sources, positions = [0], list[int](), list[int]()
        for hop in hops:
            if self.resample:
                pointers, sources, positions = [0], [], []
            base = len(sources)
            pointers = pointers + [base + each for each in hop.pointers[1:]]
            sources, positions = sources + hop.sources, positions + hop.positions
            count = max(sources, default=-1) + 1
            known = len(pointers) - 1
            blocks.append(
                Block(
                    all_nodes[: max(known, count)],
                    known,
                    seeds.new_tensor(pointers),
                    seeds.new_tensor(sources),
                    seeds.new_tensor(positions),
                    index,
                )
            )
        seed_rows = seeds.new_tensor([rows[each] for each in given])
        return NeighborSample(all_nodes[: len(rows)], seed_rows, blocks[::-1], number)

    def _allocate(self, count: int) -> torch.Tensor:
        dtype = self.graph.index_dtype
        if count * dtype.itemsize < _POOLED_FROM_BYTES:
            return torch.empty(count, dtype=dtype, device="cpu")
        return self._pool.take(count * dtype.itemsize).tensor(dtype, (count,))

    def __getstate__(self) -> dict[str, Any]:
        names = ("graph", "replace", "resample", "fan_outs", "seed")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def __repr__(self) -> str:
        fans = [each[0] if len(each) == 1 else each for each in self.fan_outs]
        return f"NeighborSampler({self.graph!r}, {fans}, seed={self.seed})"


class _Arena:
    """One allocation, dealt out front to back."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory, self._used = memory, 0

    def take(self, count: int) -> torch.Tensor:
        start, self._used = self._used, self._used + count
        return self._memory[start : self._used]


def _held_tensors(
    index: TargetIndex, *, needs_relations: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """Plain tensors of what is sampled from; `None` where some of it lies on disk."""
    pointers, sources = _in_memory(index.pointers), _in_memory(index.sources)
    relations = _in_memory(index.relations) if needs_relations else None
    if pointers is None or sources is None or (needs_relations and relations is None):
        return None
    return pointers, sources, relations


def _in_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.table.tensor() if isinstance(tensor, UnifiedTensor) else tensor


def _as_signed(key: int) -> int:
    """The same 64 bits as a kernel takes them."""
    return key - 2**64 if key >= 2**63 else key


def _choose_threads(asked: Any) -> int:
    """How many threads draw: as many as were asked for, else PyTorch's."""
    if asked is None:
        return kernel_threads()
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise SamplingError(f"threads must be a whole number from 1 on, got {asked!r}.")
    return kernel_threads(min(asked, _MOST_THREADS))


def _read_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise SamplingError(f"seed must be a whole number, got {seed!r}.")
    return seed & _MASK
