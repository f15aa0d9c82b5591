"""`HGTSampler`: seeds in, a subgraph with a number of nodes of each type out."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from shorthaul.errors import SamplingError, SeedRangeError
from shorthaul.graphs.edge_tensors import numbers_at, read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.blocks import Block, NeighborSample
from shorthaul.graphs.sampling.budgets.kernels import BudgetMemory
from shorthaul.graphs.sampling.budgets.plain_budgets import Request, sample_plainly
from shorthaul.graphs.sampling.plain import GOLDEN, mix
from shorthaul.graphs.sampling.streams import as_signed, choose_key, choose_threads, read_seed
from shorthaul.jit import can_use_kernels
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.tensors import UnifiedTensor

MOST_NEIGHBORS = 50  # PyG's


class _Rows(NamedTuple):
    """Where the rows of some nodes lie in two columns, and from where on the index has them."""

    begins: torch.Tensor
    ends: torch.Tensor
    positions: torch.Tensor
    sources: torch.Tensor
    relations: torch.Tensor


class HGTSampler:
    """Draws a number of nodes of each type, by what they mean to those that are there, in generated C++.

    The algorithm of the Heterogeneous Graph Transformer (Hu et al., 2020), as PyG's `HGTLoader` has it: a
    node that is taken gives each of its neighbors one over how many it has by that relation. Each
    hop takes so many nodes of each type, none twice, in proportion to the squares of what they were given.
    The sample is one block of all edges among all nodes; every layer of a model works on it.

    >>> import torch, shorthaul as sh
    >>> pairs = {("paper", "by", "author"): torch.tensor([[0, 1, 2, 2], [0, 0, 0, 1]])}
    >>> graph = sh.RelationalGraph.from_typed_edges(pairs, {"paper": 3, "author": 2}).with_inverses()
    >>> sample = sh.graphs.HGTSampler(graph, {"paper": [2, 1], "author": [1, 1]}).sample([3])
    >>> sample.seeds.tolist(), sample.blocks
    ([3], [Block(5 sources, 5 targets, 8 edges)])

    The same `seed` and the same number of a sample give the same block, on any number of threads, from
    memory and from disk. Threads may share a sampler.

    Args:
        graph: The graph.
        num_samples: How many nodes each hop takes: a list for every type, or a mapping from each type to
            its list.
        most_neighbors: Of more neighbors than this (default 50) by one relation so many are looked at, drawn
            at random; -1 looks at all.
        seed: Of every random choice (default 0).
    """

    @outside_graphs
    @alone_after_fork
    def __init__(
        self,
        graph: RelationalGraph,
        num_samples: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        most_neighbors: int = MOST_NEIGHBORS,
        seed: int = 0,
    ) -> None:
        self.graph = graph
        self.num_samples = read_num_samples(graph, num_samples)
        self.most_neighbors = _read_count("most_neighbors", most_neighbors, least=-1)
        self.seed = read_seed(seed)
        self._start()

    def _start(self) -> None:
        self._numbers = itertools.count()
        self._idle: list[BudgetMemory] = []  # append and pop are atomic: no lock to fork with
        stops = [self.graph.nodes_of(kind).stop for kind in self.graph.node_types]
        self._stops = torch.tensor(stops, dtype=self.graph.index_dtype, device="cpu")
        self._wanted = torch.tensor(
            [list(each) for each in self.num_samples], dtype=torch.int64, device="cpu"
        ).reshape(len(self.num_samples), len(stops))

    @outside_graphs
    @alone_after_fork
    def sample(
        self, seeds: Any, *, number: int | None = None, threads: int | None = None
    ) -> NeighborSample:
        """The nodes around `seeds` and the edges among them all; the seeds come first.

        Args:
            seeds: Node ids of any integer dtype. Repeated ones count once.
            number: Which sample of this sampler it is, and so which random numbers it gets; None
                (default) counts from 0.
            threads: Threads that look for edges; None (default) takes PyTorch's number.
        """
        given = self._require_seeds(seeds)
        number = next(self._numbers) if number is None else number
        threads = choose_threads(threads)
        if not can_use_kernels("HGT sampling"):
            return self.sample_plainly(given, number)
        graph = self.graph
        memory = (
            self._idle.pop() if self._idle else BudgetMemory(graph.index_dtype, graph.num_nodes)
        )
        try:
            return self._draw(memory, given, number, threads)
        finally:
            self._idle.append(memory)

    def _draw(
        self, memory: BudgetMemory, given: torch.Tensor, number: int, threads: int
    ) -> NeighborSample:
        kernel, sampler, most = memory.kernel, memory.address, self.most_neighbors
        keys = choose_keys(choose_key(self.seed, number), len(self.num_samples))
        seed_rows = torch.empty_like(given)
        seeds = count = _require_memory(kernel.start(sampler, given, seed_rows))
        first = 0
        for hop, (given_key, drawn_key) in enumerate(keys[:-1]):
            last = given.new_empty(count - first)
            kernel.copy_nodes(sampler, first, last)
            _require_memory(
                kernel.give(sampler, *self._read_rows(last), most, as_signed(given_key))
            )
            first = count
            drawn = kernel.draw(sampler, self._stops, self._wanted[hop], as_signed(drawn_key))
            count = _require_memory(drawn)
        nodes = given.new_empty(count)
        kernel.copy_nodes(sampler, 0, nodes)
        rows, key = self._read_rows(nodes), as_signed(keys[-1][0])
        offsets = torch.empty(count + 1, dtype=torch.int64, device="cpu")
        edges = kernel.count_edges(sampler, *rows, most, key, offsets, threads)
        if edges > torch.iinfo(given.dtype).max:
            raise SamplingError(
                f"the sample has {edges:,} edges, more than {given.dtype} can count.\n"
                "  Lower num_samples, or make the graph with int64 indexes."
            )
        sources, positions = given.new_empty(edges), given.new_empty(edges)
        kernel.write_edges(sampler, *rows, most, key, offsets, sources, positions, threads)
        return self._finish(nodes, seeds, seed_rows, (offsets, sources, positions), number)

    def _finish(
        self,
        nodes: torch.Tensor,
        seeds: int,
        seed_rows: torch.Tensor,
        edges: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        number: int,
    ) -> NeighborSample:
        offsets, sources, positions = edges
        pointers, index = offsets.to(nodes.dtype), self.graph.by_target()
        block = Block(nodes, len(nodes), pointers, sources, positions, index)
        return NeighborSample(nodes[:seeds], seed_rows, [block], number)

    def sample_plainly(self, seeds: Any, number: int) -> NeighborSample:
        """The same sample in plain Python: where there is no compiler, and to compare with.

        Args:
            seeds: Node ids, as for `sample`.
            number: Which sample of this sampler it is.
        """
        given = self._require_seeds(seeds)
        keys = choose_keys(choose_key(self.seed, number), len(self.num_samples))
        request = Request(self.num_samples, self.most_neighbors, keys)
        distinct = list(dict.fromkeys(given.tolist()))
        found = sample_plainly(self.graph, distinct, request)
        nodes, sources, positions = (
            torch.tensor(each, dtype=given.dtype, device="cpu")
            for each in (found.nodes, found.sources, found.positions)
        )
        offsets = torch.tensor(found.offsets, dtype=torch.int64, device="cpu")
        places = {node: place for place, node in enumerate(distinct)}
        seed_rows = torch.tensor(
            [places[each] for each in given.tolist()], dtype=given.dtype, device="cpu"
        )
        return self._finish(nodes, len(distinct), seed_rows, (offsets, sources, positions), number)

    def _read_rows(self, nodes: torch.Tensor) -> _Rows:
        """The rows of `nodes`: where they lie in memory, or what was read of them from disk."""
        index = self.graph.by_target()
        ends = numbers_at(index.pointers, torch.stack([nodes, nodes + 1], dim=1).flatten())
        firsts, stops = ends.view(-1, 2).long().t().contiguous()
        held = [_in_memory(each) for each in (index.sources, index.relations)]
        if held[0] is not None and held[1] is not None:
            return _Rows(firsts, stops, firsts, held[0], held[1])
        degrees = stops - firsts
        ends_read = torch.cumsum(degrees, 0)
        begins = ends_read - degrees
        places = torch.arange(int(degrees.sum()), dtype=torch.int64, device="cpu")
        places += torch.repeat_interleave(firsts - begins, degrees)
        columns = (numbers_at(each, places) for each in (index.sources, index.relations))
        return _Rows(begins, ends_read, firsts, *columns)

    def _require_seeds(self, seeds: Any) -> torch.Tensor:
        given = read_numbers(seeds, "seeds")
        wrong = torch.nonzero((given < 0) | (given >= self.graph.num_nodes))
        if wrong.numel():
            position = int(wrong[0])
            raise SeedRangeError(int(given[position]), position, self.graph.num_nodes)
        return given.to(self.graph.index_dtype).contiguous()

    def __getstate__(self) -> dict[str, Any]:
        names = ("graph", "num_samples", "most_neighbors", "seed")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def __repr__(self) -> str:
        of_types = dict(
            zip(self.graph.node_types, zip(*self.num_samples, strict=True), strict=False)
        )
        told = {kind: list(each) for kind, each in of_types.items()}
        return f"HGTSampler({self.graph!r}, {told}, seed={self.seed})"


def read_num_samples(
    graph: RelationalGraph, num_samples: Sequence[int] | Mapping[str, Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """For each hop, how many nodes of each type it takes.

    >>> graph = RelationalGraph.from_typed_edges({("a", "to", "b"): torch.tensor([[0], [0]])})
    >>> read_num_samples(graph, {"b": [3, 4], "a": [1, 2]})
    ((1, 3), (2, 4))
    """
    kinds = graph.node_types
    if isinstance(num_samples, Mapping):
        missing = [kind for kind in kinds if kind not in num_samples]
        unknown = [kind for kind in num_samples if kind not in kinds]
        if missing or unknown:
            told = "lacks" if missing else "names"
            raise SamplingError(
                f"num_samples {told} {', '.join(map(repr, missing or unknown))}; the graph's node types are "
                f"{', '.join(kinds)}.\n  Give each a list with a number for each hop; 0 takes none."
            )
        lists = [num_samples[kind] for kind in kinds]
    else:
        lists = [num_samples] * len(kinds)
    for each in lists:
        if not isinstance(each, list | tuple) or len(each) != len(lists[0]):
            raise SamplingError(
                "num_samples must be a list with a number for each hop, or a mapping of node types to such "
                f"lists of one length, got {num_samples!r}."
            )
    counts = [[_read_count("num_samples", one, least=0) for one in each] for each in lists]
    return tuple(zip(*counts, strict=True))


def choose_keys(key: int, hops: int) -> list[tuple[int, int]]:
    """Two for each hop, of neighbors that are looked at and of nodes that are taken; one for the edges."""
    numbers = [mix((key + GOLDEN * (at + 1)) & (2**64 - 1)) for at in range(2 * hops + 2)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _read_count(name: str, given: Any, *, least: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = least - 1
    if isinstance(given, bool) or not least <= number < 2**62:
        raise SamplingError(f"{name} must be whole numbers from {least} on, got {given!r}.")
    return number


def _require_memory(status: int) -> int:
    if status < 0:
        raise MemoryError("there was no memory for a sample of nodes: lower num_samples")
    return status


def _in_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.table.tensor() if isinstance(tensor, UnifiedTensor) else tensor
