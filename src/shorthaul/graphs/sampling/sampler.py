"""`NeighborSampler`: seeds in, compact blocks out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.errors import SamplingError, SeedRangeError
from shorthaul.graphs.edge_tensors import read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.index.indexes import TargetIndex
from shorthaul.graphs.sampling.blocks import NeighborSample
from shorthaul.graphs.sampling.candidates.arranging import Arranged
from shorthaul.graphs.sampling.candidates.disk_rows import read_rows
from shorthaul.graphs.sampling.candidates.excluded import find_positions
from shorthaul.graphs.sampling.candidates.rules import read_rule, read_seed_times
from shorthaul.graphs.sampling.collecting import collect_plainly, collect_sample
from shorthaul.graphs.sampling.device.device_sampler import DeviceSampler
from shorthaul.graphs.sampling.fan_outs import (
    FanOut,
    choose_fan_outs,
    read_fan_outs,
    require_one_kind,
)
from shorthaul.graphs.sampling.kernels import HASHED_FROM_NODES, SamplingMemory, require_drawn
from shorthaul.graphs.sampling.plain_sample import Request, sample_plainly
from shorthaul.graphs.sampling.streams import as_signed, choose_key, choose_threads, read_seed
from shorthaul.jit import can_use_kernels
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.storage import NO_LIMIT_BYTES, BufferPool
from shorthaul.tensors import UnifiedTensor

_MOST = 2**63 - 1
# Below this, malloc has warm memory; above, it maps fresh pages, and faulting them in costs as much
# as the sampling.
_POOLED_FROM_BYTES = 64 * 1024


@dataclass(frozen=True)
class _Drawing:
    """One sample that a kernel is to draw."""

    seeds: torch.Tensor
    times: torch.Tensor | None
    excluded: torch.Tensor  # positions, ascending
    key: int
    threads: int


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

    A `strategy` is one of:

    - `uniform`: each set of neighbors of that size is as likely as any other;
    - `weighted`: in proportion to `weights`; without replacement one after the other, among those left;
    - `last`: the latest ones, with times;
    - `labor`: as likely as `uniform` for each target, but targets of a hop prefer the same neighbors,
      so that there are fewer nodes whose features are read.

    With times, a seed sees nothing that is later than itself: no edge, and no node. The same `seed` and
    the same number of a sample give the same blocks, on any number of threads, from memory and from disk.
    Threads may share a sampler.

    Args:
        graph: The graph.
        fan_outs: How many incoming edges are followed: first from the seeds, then from their
            neighbors, and so on (PyG's order; DGL's is the reverse). An entry is a number for all
            relations together, -1 for all edges, or a mapping with a number for each relation, by
            its name, its three words or its number. None (default) takes `num_neighbors`, and 15,
            10, 5 where there is none.
        num_neighbors: The same in PyG's form (default None): a number of a hop is that of each
            relation, not of all together; a mapping has a list of all hops for each relation.
        replace: Whether a neighbor may be drawn more than once (default False).
        resample: Whether every layer draws anew for all of its targets, as in DGL (default True).
            False keeps the neighbors that a node got first, as in PyG, which takes less time and
            brings fewer nodes.
        seed: Of every random choice (default 0).
        strategy: `"uniform"` (default), `"weighted"`, `"last"` or `"labor"`.
        weights: One for each edge; None (default) takes the graph's edge data `weight` where the
            strategy needs them.
        node_times: Whole numbers, one for each node, or a name in the graph's node data; None
            (default) for none.
        edge_times: Whole numbers, one for each edge, or a name in the graph's edge data; None
            (default) for none.
        includes_equal: Whether what has the very time of a seed is seen (default True).
        disjoint: Whether every seed has a tree of its own; `sample.trees` says to which seed a node
            belongs. None (default) does that with times.
        device: A CUDA device on which samples are wanted, and which draws uniform ones itself; None
            (default) for the CPU. The samples are the same.
        topology: Whether such a device reads the graph where it is, `"mapped"` (default), or gets a
            copy of its own, `"copied"`.
    """

    @outside_graphs
    @alone_after_fork
    def __init__(
        self,
        graph: RelationalGraph,
        fan_outs: Sequence[FanOut] | None = None,
        *,
        num_neighbors: Any = None,
        replace: bool = False,
        resample: bool = True,
        seed: int = 0,
        strategy: str = "uniform",
        weights: Any = None,
        node_times: Any = None,
        edge_times: Any = None,
        includes_equal: bool = True,
        disjoint: bool | None = None,
        device: torch.device | str | None = None,
        topology: str = "mapped",
    ) -> None:
        self.graph, self.replace, self.resample = graph, bool(replace), bool(resample)
        self.rule = read_rule(
            graph,
            strategy,
            replace=replace,
            disjoint=disjoint,
            includes_equal=includes_equal,
            weights=weights,
            node_times=node_times,
            edge_times=edge_times,
        )
        self.fan_outs = read_fan_outs(graph, choose_fan_outs(graph, fan_outs, num_neighbors))
        if self.rule.is_temporal:
            self.fan_outs = require_one_kind(graph, self.fan_outs)
        self.seed = read_seed(seed)
        self._arranged: Arranged | None = None
        self._far: DeviceSampler | None = None
        if device is not None:
            self._far = DeviceSampler(
                graph,
                self.fan_outs,
                self.rule,
                resample=self.resample,
                device=device,
                topology=topology,
            )
        self._start()

    @property
    def device(self) -> torch.device | None:
        """The CUDA device on which samples come out; `None` for the CPU."""
        return None if self._far is None else self._far.device

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
    @alone_after_fork
    def sample(
        self,
        seeds: Any,
        *,
        times: Any = None,
        exclude: Any = None,
        number: int | None = None,
        threads: int | None = None,
    ) -> NeighborSample:
        """The blocks around `seeds`.

        Args:
            seeds: Node ids of any integer dtype. Repeated ones count once, but in disjoint samples.
            times: The moments of the seeds; None (default) takes those of their nodes.
            exclude: Ids of edges that are not followed; None (default) for none.
            number: Which sample of this sampler it is, and so which random numbers it gets; None
                (default) counts from 0.
            threads: Threads that draw; None (default) takes PyTorch's number.
        """
        if self._far is not None:
            if isinstance(seeds, torch.Tensor) and seeds.device == self._far.device:
                seeds = seeds.cpu()  # a few ids, which are checked here
            number = next(self._numbers) if number is None else number
            drawn = self._draw_far(self._far, seeds, number, exclude)
            if drawn is not None:
                return drawn
        sample = self._sample(seeds, times, exclude, number, threads)
        return sample if self._far is None else self._far.bring(sample)

    def _draw_far(
        self, far: DeviceSampler, seeds: Any, number: int, exclude: Any
    ) -> NeighborSample | None:
        """The sample as a device draws it; `None` where it cannot."""
        if exclude is not None:
            far.note_exclusion()
            return None
        try:
            return far.draw(self.require_seeds(seeds), choose_key(self.seed, number), number)
        except OverflowError:
            self._require_sampled(-1)
            raise

    def _sample(
        self, seeds: Any, times: Any, exclude: Any, number: int | None, threads: int | None
    ) -> NeighborSample:
        given = self.require_seeds(seeds)
        moments = read_seed_times(self.rule, given, times)
        self._require_trees(given)
        number = next(self._numbers) if number is None else number
        threads = choose_threads(threads)
        if not can_use_kernels("neighbor sampling"):
            return self.sample_plainly(given, number, times=moments, exclude=exclude)
        excluded = given[:0] if exclude is None else find_positions(self.graph, exclude)
        drawing = _Drawing(
            given, moments, excluded, as_signed(choose_key(self.seed, number)), threads
        )
        arranged = self._arrange()
        memory = self._idle.pop() if self._idle else self._make_memory()
        try:
            seed_rows = torch.empty_like(given)
            draw = self._draw_from_disk if arranged is None else self._draw
            counts = draw(memory, drawing, seed_rows)
            return collect_sample(
                memory,
                self.graph,
                seed_rows,
                number,
                counts,
                resample=self.resample,
                disjoint=self.rule.disjoint,
                allocate=self._allocate,
            )
        finally:
            self._idle.append(memory)

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

    def _require_trees(self, seeds: torch.Tensor) -> None:
        if self.rule.disjoint and seeds.numel() * self.graph.num_nodes > _MOST:
            raise SamplingError(
                f"{seeds.numel():,} trees of {self.graph.num_nodes:,} nodes are more than can be counted: "
                "lower the number of seeds."
            )

    def _arrange(self) -> Arranged | None:
        """What is known of candidates in memory; `None` where each hop finds it out, as for graphs on disk."""
        index, is_relational = self.graph.by_target(), self._fans.shape[1] > 1
        if _held_tensors(index, needs_relations=is_relational) is None:
            return None
        if self.rule.weights is not None and len(set(self._widths.tolist())) > 1:
            return (
                None  # sums of a row and of its relations are not the same: each hop makes its own
            )
        if self._arranged is None:
            self._arranged = self.rule.arrange(self.graph, by_relation=is_relational)
        return self._arranged

    def _draw(
        self, memory: SamplingMemory, drawing: _Drawing, seed_rows: torch.Tensor
    ) -> list[int]:
        """All hops in one call; the seeds, then nodes and edges after each hop."""
        held = _held_tensors(self.graph.by_target(), needs_relations=self._fans.shape[1] > 1)
        assert held is not None
        assert self._arranged is not None
        counts = torch.empty(1 + 2 * len(self.fan_outs), dtype=torch.int64, device="cpu")
        status = memory.kernel.sample(
            memory.address,
            *held,
            *self._arranged,
            drawing.seeds,
            drawing.times,
            drawing.excluded,
            seed_rows,
            self._fans,
            self._widths,
            counts,
            *self.rule.numbers,
            self.resample,
            self.rule.disjoint,
            drawing.key,
            drawing.threads,
        )
        self._require_sampled(-1 if status > 0 else status)
        return [*map(int, counts.tolist())]

    def _draw_from_disk(
        self, memory: SamplingMemory, drawing: _Drawing, seed_rows: torch.Tensor
    ) -> list[int]:
        """Hop by hop: read the targets' rows, draw, read the neighbors that were drawn, relabel."""
        kernel, sampler, rule = memory.kernel, memory.address, self.rule
        seeds, threads = drawing.seeds, drawing.threads
        targets = torch.empty(2, dtype=torch.int64, device="cpu")
        hops = len(self.fan_outs)
        started = kernel.start(sampler, seeds, seed_rows, hops, rule.disjoint, threads)
        counts = [self._require_sampled(started)]
        for hop, fan in enumerate(self.fan_outs):
            kernel.start_hop(sampler, hop, self.resample, targets)
            first, count = targets.tolist()
            nodes = seeds.new_empty(count)
            kernel.copy_nodes(sampler, first, nodes)
            drawn = kernel.draw_hop(
                sampler,
                hop,
                *read_rows(self.graph, rule, nodes, by_relation=len(fan) > 1),
                drawing.times,
                drawing.excluded,
                self._fans[hop],
                len(fan),
                *rule.numbers,
                drawing.key,
                threads,
            )
            positions = seeds.new_empty(self._require_sampled(drawn))
            kernel.copy_positions(sampler, hop, positions)
            sources = self.graph.by_target().sources[positions]
            met = self._require_sampled(kernel.relabel_hop(sampler, hop, sources))
            counts += [met, positions.shape[0]]
        return counts

    def _require_sampled(self, status: int) -> int:
        return require_drawn(status, self.graph.index_dtype)

    def sample_plainly(
        self, seeds: Any, number: int, *, times: Any = None, exclude: Any = None
    ) -> NeighborSample:
        """The same sample in plain Python: where there is no compiler, and to compare with.

        Args:
            seeds: Node ids, as for `sample`.
            number: Which sample of this sampler it is.
            times: The moments of the seeds; None (default) takes those of their nodes.
            exclude: Ids of edges that are not followed; None (default) for none.
        """
        given = self.require_seeds(seeds)
        moments = read_seed_times(self.rule, given, times)
        excluded = [] if exclude is None else find_positions(self.graph, exclude).tolist()
        request = Request(
            self.fan_outs,
            self.rule,
            choose_key(self.seed, number),
            self.resample,
            None if moments is None else moments.tolist(),
            frozenset(excluded),
        )
        kinds = {"resample": self.resample, "disjoint": self.rule.disjoint}
        try:
            pairs, hops = sample_plainly(self.graph, given.tolist(), request)
        except OverflowError:
            self._require_sampled(-1)
            raise
        return collect_plainly(self.graph, given.tolist(), pairs, hops, number, **kinds)

    def _allocate(self, count: int) -> torch.Tensor:
        dtype = self.graph.index_dtype
        if count * dtype.itemsize < _POOLED_FROM_BYTES:
            return torch.empty(count, dtype=dtype, device="cpu")
        return self._pool.take(count * dtype.itemsize).tensor(dtype, (count,))

    def __getstate__(self) -> dict[str, Any]:
        names = ("graph", "replace", "resample", "rule", "fan_outs", "seed", "_arranged", "_far")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def __repr__(self) -> str:
        fans = [each[0] if len(each) == 1 else each for each in self.fan_outs]
        return f"NeighborSampler({self.graph!r}, {fans}, seed={self.seed})"


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
