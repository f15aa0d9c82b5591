"""Budgets: the kernel against plain Python, plain Python against the algorithm as PyG states it."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import SamplingError, SeedRangeError
from shorthaul.graphs import HGTSampler, RelationalGraph
from tests.graphs.sampled_graphs import same_samples, verify_sample


def draw_typed(seed: int, edges: int = 300, dtype: torch.dtype = torch.int64) -> RelationalGraph:
    """Three types of nodes; hubs, repeated edges, nodes without edges, a relation without any."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"paper": 40, "author": 25, "field": 4}
    pairs = {}
    for one, name, other in (
        ("author", "writes", "paper"),
        ("paper", "by", "author"),
        ("paper", "about", "field"),
        ("field", "of", "paper"),
        ("paper", "cites", "paper"),
        ("author", "knows", "author"),
    ):
        count = 0 if name == "knows" else edges
        ends = torch.rand(2, count, generator=generator)
        ends[0] **= 3  # some are met often
        of_types = torch.tensor([[sizes[one]], [sizes[other]]])
        pairs[one, name, other] = (ends * of_types).long()
    return RelationalGraph.from_typed_edges(pairs, sizes, index_dtype=dtype)


COUNTS = st.integers(0, 12)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(COUNTS, COUNTS, COUNTS), max_size=4),
    st.sampled_from([-1, 0, 1, 3, 50]),
    st.sampled_from([torch.int32, torch.int64]),
    st.lists(st.integers(0, 68), max_size=9),
)
def test_the_kernel_samples_what_plain_python_samples(
    seed: int,
    hops: list[tuple[int, int, int]],
    most: int,
    dtype: torch.dtype,
    seeds: list[int],
) -> None:
    graph = draw_typed(seed % 5, dtype=dtype)
    of_types = zip(*hops, strict=True) if hops else [[]] * 3
    wanted = dict(zip(graph.node_types, map(list, of_types), strict=True))
    sampler = HGTSampler(graph, wanted, most_neighbors=most, seed=seed)
    sample = sampler.sample(seeds, number=seed % 7)
    assert same_samples(sample, sampler.sample_plainly(seeds, seed % 7)) == ""
    assert sample.seeds[sample.seed_rows.long()].tolist() == seeds
    nodes = sample.blocks[0].source_nodes
    assert torch.equal(nodes[: len(set(seeds))], sample.seeds)
    verify_sample(graph, replace(sample, seeds=nodes))  # every node hears, not the seeds alone


def test_rows_longer_than_a_word_are_looked_at_as_in_plain_python() -> None:
    sources = torch.arange(1, 5001)
    edges = {("a", "to", "a"): torch.stack([sources, torch.zeros_like(sources)])}
    graph = RelationalGraph.from_typed_edges(edges)
    for most in (1, 64, 4999):
        sampler = HGTSampler(graph, [70], most_neighbors=most)
        assert same_samples(sampler.sample([0], number=1), sampler.sample_plainly([0], 1)) == ""


def test_all_edges_among_the_nodes_are_there() -> None:
    graph = draw_typed(1)
    block = HGTSampler(graph, [5, 5], most_neighbors=-1).sample(range(8)).blocks[0]
    taken = set(block.source_nodes.tolist())
    ends = zip(graph.source.tolist(), graph.target.tolist(), strict=True)
    expected = [number for number, pair in enumerate(ends) if taken.issuperset(pair)]
    assert sorted(block.edges.tolist()) == expected
    assert len(expected) > 100


def test_each_hop_takes_as_many_of_each_type_as_were_asked_for() -> None:
    graph = draw_typed(2)
    wanted = {"paper": [7, 4], "author": [3, 5], "field": [0, 2]}
    seeds = range(0, 69, 9)
    nodes = HGTSampler(graph, wanted).sample(seeds).blocks[0].source_nodes.tolist()[len(seeds) :]
    kinds = [
        next(kind for kind in graph.node_types if node in graph.nodes_of(kind)) for node in nodes
    ]
    assert Counter(kinds) == {"paper": 11, "author": 8, "field": 2}
    assert Counter(kinds[:10]) == {"paper": 7, "author": 3}


def test_disk_memory_and_any_number_of_threads_give_the_same(tmp_path: Path) -> None:
    graph = draw_typed(3, edges=4000)
    on_disk = RelationalGraph.open(graph.save(tmp_path / "graph", ["target"]))
    expected = HGTSampler(graph, [9, 9, 9]).sample(range(20), number=4, threads=1)
    assert expected.blocks[0].num_edges > 1000
    for which in (graph, on_disk):
        sampler = HGTSampler(which, [9, 9, 9])
        for threads in (1, 2, 5):
            got = sampler.sample(range(20), number=4, threads=threads)
            assert same_samples(expected, got) == ""
    copied = pickle.loads(pickle.dumps(HGTSampler(graph, [9, 9, 9])))
    assert same_samples(expected, copied.sample(range(20), number=4)) == ""


def test_samples_are_numbered_and_seeded() -> None:
    graph = draw_typed(3)
    sampler = HGTSampler(graph, [5, 5])
    first, second = sampler.sample([1]), sampler.sample([1])
    assert (first.number, second.number) == (0, 1)
    assert same_samples(first, second) != ""
    assert same_samples(first, HGTSampler(graph, [5, 5]).sample([1])) == ""
    assert same_samples(first, HGTSampler(graph, [5, 5], seed=1).sample([1], number=0)) != ""


def test_where_there_is_no_compiler_plain_python_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = draw_typed(4)
    expected = HGTSampler(graph, [5, 5]).sample([1, 1, 2], number=2)
    monkeypatch.setattr(
        "shorthaul.graphs.sampling.budgets.hgt_sampler.can_use_kernels", lambda _: False
    )
    monkeypatch.delattr("shorthaul.graphs.sampling.budgets.hgt_sampler.BudgetMemory")
    assert same_samples(expected, HGTSampler(graph, [5, 5]).sample([1, 1, 2], number=2)) == ""


class _Stated:
    """The algorithm as PyG states it, with numpy's random numbers: dictionaries and its own choice."""

    def __init__(self, graph: RelationalGraph, most: int, seed: int) -> None:
        self.kinds, self.most = graph.node_types, most
        self.ranges = {kind: graph.nodes_of(kind) for kind in self.kinds}
        self.random = np.random.default_rng(seed)
        self.incoming: dict[Any, list[int]] = {}
        for source, target, relation in zip(
            *(column.tolist() for column in (graph.source, graph.target, graph.relation)),
            strict=True,
        ):
            self.incoming.setdefault((target, relation), []).append(source)
        self.relations = range(graph.num_relations)

    def sample(self, seeds: list[int], wanted: list[dict[str, int]]) -> list[int]:
        taken, budget = list(seeds), dict[int, float]()
        self._update(budget, taken, seeds)
        for counts in wanted:
            new: list[int] = []
            for kind in self.kinds:
                own = [node for node in budget if node in self.ranges[kind]]
                weights = np.array([budget[node] ** 2 for node in own])
                number = min(counts[kind], len(own))
                if number:
                    chance = weights / weights.sum()
                    new += self.random.choice(own, number, replace=False, p=chance).tolist()
            taken += new
            for node in new:
                del budget[node]
            self._update(budget, taken, new)
        return taken

    def _update(self, budget: dict[int, float], taken: list[int], new: list[int]) -> None:
        for node in new:
            for relation in self.relations:
                row = self.incoming.get((node, relation), [])
                if len(row) > self.most:
                    row = self.random.choice(row, self.most, replace=False).tolist()
                for source in row:
                    if source not in taken:
                        budget[source] = budget.get(source, 0.0) + 1 / len(row)


def test_the_comparison_of_frequencies_sees_another_distribution() -> None:
    one, other = Counter({0: 500, 1: 300}), Counter({0: 580, 1: 300})
    assert _worst_difference(one, one, 1000) == 0
    assert _worst_difference(one, other, 1000) > 3


@pytest.mark.parametrize("most", [50, 3])
def test_nodes_are_taken_as_often_as_by_the_algorithm_as_pyg_states_it(most: int) -> None:
    graph, samples = draw_typed(0, edges=90), 2000
    seeds = [0, 3, graph.nodes_of("author").start]
    wanted = [{"paper": 3, "author": 2, "field": 1}, {"paper": 4, "author": 3, "field": 1}]
    lists = {kind: [each[kind] for each in wanted] for kind in graph.node_types}
    stated = _Stated(graph, most, seed=5)
    sampler = HGTSampler(graph, lists, most_neighbors=most, seed=6)
    one, other = Counter[int](), Counter[int]()
    for number in range(samples):
        one.update(stated.sample(seeds, wanted))
        other.update(sampler.sample(seeds, number=number).blocks[0].source_nodes.tolist())
    assert abs(one.total() - other.total()) < 0.01 * one.total()
    assert len([node for node, count in one.items() if 0.01 < count / samples < 0.99]) > 15
    # 70 nodes, each a binomial: that one is off by five deviations happens once in 20,000 runs.
    assert _worst_difference(one, other, samples) < 5


def _worst_difference(one: Counter[int], other: Counter[int], samples: int) -> float:
    """The largest difference of frequencies, in standard deviations of it."""
    worst = 0.0
    for node in {*one, *other}:
        share = (one[node] + other[node]) / (2 * samples)
        deviation = math.sqrt(2 * samples * share * (1 - share))
        worst = max(worst, abs(one[node] - other[node]) / max(deviation, 1.0))
    return worst


def test_a_node_is_taken_in_proportion_to_the_square_of_its_budget() -> None:
    """Node 0 hears from 1 three times and from 2 once: budgets 3/4 and 1/4, so nine to one."""
    graph = RelationalGraph.from_edges([1, 1, 1, 2], [0, 0, 0, 0])
    sampler = HGTSampler(graph, [1])
    counts = Counter(
        int(sampler.sample([0], number=number).blocks[0].source_nodes[1]) for number in range(4000)
    )
    assert abs(counts[1] - 3600) < 5 * math.sqrt(4000 * 0.9 * 0.1)


@pytest.mark.parametrize(
    ("num_samples", "told"),
    [
        (
            {"paper": [1]},
            "num_samples lacks 'author', 'field'; the graph's node types are paper, author, field.\n"
            "  Give each a list with a number for each hop; 0 takes none.",
        ),
        (
            {"paper": [1], "author": [1], "field": [1], "venue": [1]},
            "num_samples names 'venue'; the graph's node types are paper, author, field.\n"
            "  Give each a list with a number for each hop; 0 takes none.",
        ),
        (5, "num_samples must be a list with a number for each hop, or a mapping of node types to such "
            "lists of one length, got 5."),
        ([-1], "num_samples must be whole numbers from 0 on, got -1."),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_named(num_samples: Any, told: str) -> None:
    with pytest.raises(SamplingError) as caught:
        HGTSampler(draw_typed(0, edges=9), num_samples)
    assert str(caught.value) == told


def test_lists_of_different_lengths_and_seeds_that_are_no_nodes_are_refused() -> None:
    graph = draw_typed(0, edges=9)
    with pytest.raises(SamplingError, match="lists of one length"):
        HGTSampler(graph, {"paper": [1, 2], "author": [1], "field": [1]})
    with pytest.raises(SamplingError, match="most_neighbors must be whole numbers from -1 on"):
        HGTSampler(graph, [1], most_neighbors=-2)
    with pytest.raises(SeedRangeError, match="seed 69 at position 1 is not a node"):
        HGTSampler(graph, [1]).sample([0, 69])
