"""Samples by weight, by time, in trees and with shared chance: against plain Python, and as promised."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import SamplingError
from shorthaul.graphs import NeighborSample, NeighborSampler, RelationalGraph
from shorthaul.settings import settings as shorthaul_settings
from tests.graphs.sampled_graphs import random_graph, same_samples, star, verify_sample

SMALLEST, LARGEST = -(2**63), 2**63 - 1
TIMES = st.one_of(st.integers(0, 6), st.sampled_from([SMALLEST, LARGEST, -1]))
WEIGHTS = st.sampled_from([0.0, 1.0, 2.0, 0.25, 1e-30, 1e30, 5e-324, 3.0])


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A graph, a rule and seeds: everything that can be combined."""
    nodes, edges = draw(st.integers(1, 10)), draw(st.integers(0, 60))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    ends = torch.randint(nodes, (2, edges), generator=generator)
    relation = torch.randint(2, (edges,), generator=generator)
    graph = RelationalGraph.from_edges(
        *ends,
        relation,
        num_nodes=nodes,
        num_relations=2,
        index_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
    )
    by_relation = draw(st.booleans())
    fan = st.integers(-1, 5)
    fans = st.fixed_dictionaries({0: fan, 1: fan}) if by_relation else fan
    options: dict[str, Any] = {"resample": draw(st.booleans()), "seed": draw(st.integers(0, 99))}
    kind = draw(st.sampled_from(["uniform", "weighted", "last", "labor", "timed", "both"]))
    if kind in ("last", "timed", "both"):
        which = draw(st.sampled_from(["nodes", "edges", "all"]))
        if which != "edges":
            options["node_times"] = draw(st.lists(TIMES, min_size=nodes, max_size=nodes))
        if which != "nodes":
            options["edge_times"] = draw(st.lists(TIMES, min_size=edges, max_size=edges))
        options["includes_equal"] = draw(st.booleans())
    else:
        options["disjoint"] = draw(st.booleans())
    if kind in ("weighted", "both"):
        options["weights"] = torch.tensor(
            draw(st.lists(WEIGHTS, min_size=edges, max_size=edges)), dtype=torch.float64
        )
    if kind in ("last", "labor"):
        options["strategy"] = kind
    else:
        options["replace"] = draw(st.booleans())
    seeds = draw(st.lists(st.integers(0, nodes - 1), max_size=6))
    asked: dict[str, Any] = {"number": draw(st.integers(0, 5))}
    if kind in ("last", "timed", "both"):
        asked["times"] = draw(st.lists(TIMES, min_size=len(seeds), max_size=len(seeds)))
    if edges and draw(st.booleans()):
        asked["exclude"] = draw(st.lists(st.integers(0, edges - 1), max_size=10))
    fan_outs = draw(st.lists(fans, max_size=3))
    return {
        "graph": graph,
        "fan_outs": fan_outs,
        "options": options,
        "seeds": seeds,
        "asked": asked,
    }


def verify_promises(request: dict[str, Any], sample: NeighborSample) -> None:
    """Nothing later than its seed, nothing excluded, nothing without weight, trees that do not meet."""
    options, asked = request["options"], request["asked"]
    excluded = set(asked.get("exclude", ()))
    for block in sample.blocks:
        source, target = block.edge_index()
        for edge, tail, head in zip(
            block.edges.tolist(), source.tolist(), target.tolist(), strict=True
        ):
            assert edge not in excluded
            if "weights" in options:
                assert options["weights"][edge] > 0
            if sample.trees is not None:
                assert sample.trees[tail] == sample.trees[head]
            if "times" in asked:
                assert sample.trees is not None
                moment = asked["times"][int(sample.trees[tail])]
                seen = [
                    column[at]
                    for column, at in (
                        (options.get("edge_times"), edge),
                        (options.get("node_times"), int(block.source_nodes[tail])),
                    )
                    if column is not None
                ]
                assert max(seen) <= moment if options["includes_equal"] else max(seen) < moment
        nodes = block.source_nodes.tolist()
        trees = [0] * len(nodes) if sample.trees is None else sample.trees[: len(nodes)].tolist()
        pairs = list(zip(trees, nodes, strict=True))
        assert len(set(pairs)) == len(pairs)


@settings(max_examples=250, deadline=None)
@given(requests())
def test_the_kernel_draws_what_plain_python_draws_and_keeps_its_promises(
    request: dict[str, Any],
) -> None:
    sampler = NeighborSampler(request["graph"], request["fan_outs"], **request["options"])
    sample = sampler.sample(request["seeds"], **request["asked"])
    plain = sampler.sample_plainly(request["seeds"], **request["asked"])
    assert same_samples(sample, plain) == ""
    assert (sample.trees is None) == (plain.trees is None)
    if sample.trees is not None and plain.trees is not None:
        assert torch.equal(sample.trees, plain.trees)
        assert sample.seeds.tolist() == request["seeds"]
        assert sample.trees[: len(sample.seeds)].tolist() == list(range(len(sample.seeds)))
    verify_promises(request, sample)
    assert sample.seeds[sample.seed_rows.long()].tolist() == request["seeds"]
    if sample.trees is None:
        verify_sample(request["graph"], sample)


RULES: list[dict[str, Any]] = [
    {"strategy": "weighted", "weights": "weight"},
    {"strategy": "weighted", "replace": True},
    {"strategy": "last", "node_times": "time"},
    {"node_times": "time", "edge_times": "time"},
    {"node_times": "time", "weights": "weight"},
    {"strategy": "labor"},
    {"disjoint": True},
]


def described_graph(nodes: int, edges: int, **options: Any) -> RelationalGraph:
    graph = random_graph(nodes, edges, 2, **options)
    generator = torch.Generator().manual_seed(7)
    return graph.with_data(
        nodes={"time": torch.randint(100, (nodes,), generator=generator)},
        edges={
            "time": torch.randint(100, (edges,), generator=generator),
            "weight": torch.rand(edges, generator=generator),
        },
    )


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("fan_outs", [[4, 3], [{0: 2, 1: -1}, {0: 3, 1: 1}]], ids=["all", "each"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_from_disk_and_by_any_number_of_threads_it_is_the_same(
    rule: dict[str, Any], fan_outs: list, dtype: torch.dtype, tmp_path: Path
) -> None:
    graph = described_graph(600, 9000, dtype=dtype)
    graph.save(tmp_path)
    seeds, exclude = [*range(590), 3], range(0, 9000, 7)
    sampler = NeighborSampler(graph, fan_outs, seed=3, **rule)
    expected = sampler.sample(seeds, number=2, exclude=exclude, threads=1)
    opened = NeighborSampler(RelationalGraph.open(tmp_path), fan_outs, seed=3, **rule)
    found = [
        sampler.sample(seeds, number=2, exclude=exclude, threads=3),
        opened.sample(seeds, number=2, exclude=exclude, threads=2),
    ]
    with shorthaul_settings.override(kernels="torch"):
        plain = NeighborSampler(graph, fan_outs, seed=3, **rule)
        found.append(plain.sample(seeds, number=2, exclude=exclude))
    for each in found:
        assert same_samples(each, expected) == ""
    assert expected.blocks[0].num_edges > 0


def _chi_squared(counts: list[int], shares: list[float]) -> float:
    total = sum(counts)
    return sum((n - total * p) ** 2 / (total * p) for n, p in zip(counts, shares, strict=True))


WEIGHTS_OF_ROW = [1.0, 2.0, 4.0, 0.5, 8.0]


def test_with_replacement_neighbors_come_in_proportion_to_their_weights() -> None:
    nodes, degree = 4000, len(WEIGHTS_OF_ROW)
    graph = star([degree] * nodes)
    weights = torch.tensor(WEIGHTS_OF_ROW * nodes)
    sampler = NeighborSampler(graph, [6], replace=True, weights=weights, seed=1)
    (block,) = sampler.sample(range(nodes)).blocks
    assert block.degrees().tolist() == [6] * nodes
    counts = torch.bincount(block.positions % degree, minlength=degree).tolist()
    shares = [each / sum(WEIGHTS_OF_ROW) for each in WEIGHTS_OF_ROW]
    assert _chi_squared(counts, shares) < 4 + 6 * 8**0.5


def test_without_replacement_each_is_drawn_among_those_left() -> None:
    nodes, degree = 12_000, len(WEIGHTS_OF_ROW)
    graph = star([degree] * nodes)
    weights = torch.tensor(WEIGHTS_OF_ROW * nodes)
    (block,) = NeighborSampler(graph, [2], weights=weights, seed=1).sample(range(nodes)).blocks
    drawn = Counter(map(tuple, (block.positions % degree).view(nodes, 2).tolist()))
    total = sum(WEIGHTS_OF_ROW)
    pairs = list(itertools.combinations(range(degree), 2))
    shares = [
        sum(
            WEIGHTS_OF_ROW[a] / total * WEIGHTS_OF_ROW[b] / (total - WEIGHTS_OF_ROW[a])
            for a, b in both
        )
        for both in (((one, other), (other, one)) for one, other in pairs)
    ]
    assert abs(sum(shares) - 1) < 1e-12
    free = len(pairs) - 1
    assert _chi_squared([drawn[each] for each in pairs], shares) < free + 6 * (2 * free) ** 0.5


def test_a_neighbor_with_nearly_all_of_the_weight_does_not_keep_others_away() -> None:
    nodes = 3000
    graph = star([4] * nodes)
    weights = torch.tensor([1e15, 1.0, 1.0, 2.0] * nodes, dtype=torch.float64)
    sampler = NeighborSampler(graph, [2], weights=weights, seed=4)
    (block,) = sampler.sample(range(nodes)).blocks
    drawn = (block.positions % 4).view(nodes, 2)
    assert drawn[:, 0].tolist() == [0] * nodes
    counts = torch.bincount(drawn[:, 1], minlength=4).tolist()
    assert _chi_squared(counts[1:], [0.25, 0.25, 0.5]) < 2 + 6 * 2
    plain = sampler.sample_plainly(range(300), 0)
    assert same_samples(sampler.sample(range(300), number=0), plain) == ""


def test_labor_takes_as_many_edges_from_fewer_nodes() -> None:
    graph = random_graph(2000, 80_000)
    seeds = range(0, 2000, 4)
    uniform = NeighborSampler(graph, [10]).sample(seeds, number=0).blocks[0]
    labor = NeighborSampler(graph, [10], strategy="labor").sample(seeds, number=0).blocks[0]
    assert torch.equal(labor.degrees(), uniform.degrees())
    assert labor.num_sources < 0.8 * uniform.num_sources


def test_labor_draws_each_neighbor_as_often_so_that_its_variance_is_the_same() -> None:
    degree, fan_out, times = 8, 3, 4000
    graph = star([degree])
    sampler = NeighborSampler(graph, [fan_out], strategy="labor", seed=2)
    drawn = Counter(
        tuple(sampler.sample([0], number=number).blocks[0].positions.tolist())
        for number in range(times)
    )
    subsets = list(itertools.combinations(range(degree), fan_out))
    free = len(subsets) - 1
    counts = [drawn[each] for each in subsets]
    assert _chi_squared(counts, [1 / len(subsets)] * len(subsets)) < free + 6 * (2 * free) ** 0.5


def test_the_last_are_the_latest_of_those_before_the_seed() -> None:
    graph = star([6]).with_data(edges={"time": [5, 1, 9, 5, 2, 7]})
    sampler = NeighborSampler(graph, [3], strategy="last", edge_times="time")
    for moment, expected in ((7, [0, 3, 5]), (6, [0, 3, 4]), (0, []), (LARGEST, [2, 3, 5])):
        (block,) = sampler.sample([0], times=[moment]).blocks
        assert block.edges.tolist() == expected
    earlier = NeighborSampler(graph, [3], strategy="last", edge_times="time", includes_equal=False)
    assert earlier.sample([0], times=[5]).blocks[0].edges.tolist() == [1, 4]


def test_seeds_have_the_times_of_their_nodes() -> None:
    graph = RelationalGraph.from_edges([1, 2, 1], [0, 0, 2], num_nodes=3)
    sampler = NeighborSampler(graph, [-1, -1], node_times=[5, 4, 6])
    sample = sampler.sample([0, 0, 2])
    assert sample.trees is not None
    pairs = list(zip(sample.trees.tolist(), sample.input_nodes.tolist(), strict=True))
    assert pairs[:3] == [(0, 0), (1, 0), (2, 2)]  # node 2 is later than node 0, and unseen by it
    assert set(pairs[3:]) == {(0, 1), (1, 1), (2, 1)}
    assert sample.seeds.tolist() == [0, 0, 2]
    assert sample.blocks[-1].num_edges == 2 * 1 + 1


def test_excluded_edges_are_left_out_of_every_hop() -> None:
    graph = random_graph(40, 400, 2, dtype=torch.int32)
    exclude = torch.arange(0, 400, 3)
    sample = NeighborSampler(graph, [-1, -1]).sample(range(40), exclude=exclude)
    for block in sample.blocks:
        assert set(block.edges.tolist()) == set(range(400)) - set(exclude.tolist())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"strategy": "alias"},
            "strategy must be one of uniform, weighted, last, labor, got 'alias'",
        ),
        ({"strategy": "weighted"}, "weights is 'weight', but the graph's edges have no such data"),
        ({"strategy": "last"}, "give node_times or edge_times"),
        ({"strategy": "labor", "replace": True}, "takes each neighbor once"),
        (
            {"strategy": "labor", "node_times": [0] * 60},
            "a tree of its own: use 'uniform' or 'last'",
        ),
        ({"strategy": "labor", "weights": [1.0] * 600}, "'labor', which does not look at weights"),
        ({"node_times": [0] * 60, "disjoint": False}, "leave `disjoint` out"),
        ({"node_times": [0.5] * 60}, "must hold whole numbers"),
        ({"node_times": [0] * 59}, r"one number for each of 60 nodes, got shape \(59,\)"),
        ({"weights": [True] * 600}, "must hold real numbers, got torch.bool"),
    ],
)
def test_what_does_not_fit_is_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        NeighborSampler(random_graph(), [3], **options)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_named(weight: float) -> None:
    weights = [1.0] * 600
    weights[17] = weight
    with pytest.raises(SamplingError, match=f"the weight of edge 17 is {weight}; weights must be"):
        NeighborSampler(random_graph(), [3], weights=weights).sample(range(60))


def test_times_of_seeds_must_be_there_and_fit() -> None:
    graph = random_graph()
    with pytest.raises(SamplingError, match="neither nodes nor edges do"):
        NeighborSampler(graph, [3]).sample([0], times=[1])
    timed = NeighborSampler(graph, [3], edge_times=[0] * 600)
    with pytest.raises(SamplingError, match="the seeds have none: pass `times`"):
        timed.sample([0])
    with pytest.raises(SamplingError, match="there are 2 seeds, but 1 times"):
        timed.sample([0, 1], times=[1])


@pytest.mark.parametrize("edge", [600, -1, 2**62])
def test_an_excluded_edge_that_there_is_none_of_is_named(edge: int) -> None:
    with pytest.raises(
        SamplingError, match=rf"names edge {edge:,} at position 1, but the graph has 600"
    ):
        NeighborSampler(random_graph(), [3]).sample([0], exclude=[3, edge])


def test_with_times_all_hops_are_of_one_kind() -> None:
    graph = random_graph(relations=2)
    with pytest.raises(SamplingError, match=r"fan_outs\[1\] is 3 for all relations together"):
        NeighborSampler(graph, [{0: 1, 1: 2}, 3], node_times=[0] * 60)
    every = NeighborSampler(graph, [{0: 1, 1: 2}, -1], node_times=[0] * 60)
    assert every.fan_outs == [[1, 2], [-1, -1]]


@pytest.mark.parametrize("fans", [[{0: 2, 1: -1, 2: 1}, 5], [5, {0: 2, 1: -1, 2: 1}]], ids=str)
@pytest.mark.parametrize("replace", [False, True])
def test_weights_where_one_hop_is_by_relation_and_another_is_not(fans: list, replace: bool) -> None:
    """Weights of a row are added up otherwise than those of each relation in it."""
    graph = random_graph(30, 900, 3, dtype=torch.int32)
    weights = torch.rand(900, generator=torch.Generator().manual_seed(2))
    sampler = NeighborSampler(graph, fans, weights=weights, replace=replace)
    for number in range(3):
        found = sampler.sample(range(0, 30, 4), number=number)
        assert same_samples(found, sampler.sample_plainly(range(0, 30, 4), number)) == ""
