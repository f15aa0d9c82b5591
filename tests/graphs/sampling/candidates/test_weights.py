"""Weights so far apart that their sums cannot tell them: each is taken as often as it should be."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import hypothesis
import pytest
import torch
from hypothesis import strategies

from shorthaul.errors import SamplingError
from shorthaul.graphs import NegativeSampler, NeighborSampler, RelationalGraph
from shorthaul.graphs.sampling.candidates.weights import add_up

EXTREMES = (0.0, 5e-324, 1e-300, 1.0, 1.0, 3.5, 1e16, 1e16, 1e300, 1e308, 1.7e308)


def _star(count: int, relations: int = 1) -> RelationalGraph:
    """Node 0, with an edge from each other one."""
    kinds = torch.arange(count) * relations // count
    return RelationalGraph.from_edges(
        torch.arange(1, count + 1),
        torch.zeros(count, dtype=torch.int64),
        kinds,
        num_nodes=count + 1,
        num_relations=relations,
    )


def _taken(sampler: NeighborSampler, number: int = 0, **options: object) -> list[int]:
    return sampler.sample([0], number=number, **options).blocks[0].edges.tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [1, -1])
def test_all_neighbors_with_a_weight_are_taken(order: int) -> None:
    weights = torch.tensor([1e16, *[1.0] * 1000][::order], dtype=torch.float64)
    sampler = NeighborSampler(_star(1001), [-1], strategy="weighted", weights=weights)
    assert len(_taken(sampler)) == 1001


def test_weights_whose_sum_is_no_number() -> None:
    weights = torch.full((3,), 1e308, dtype=torch.float64)
    assert len(_taken(NeighborSampler(_star(3), [-1], strategy="weighted", weights=weights))) == 3
    sampler = NeighborSampler(_star(3), [600], replace=True, strategy="weighted", weights=weights)
    counts = Counter(_taken(sampler))
    assert sorted(counts) == [0, 1, 2]
    assert min(counts.values()) > 130  # of 200; fewer have a chance of 1e-9


@hypothesis.given(
    strategies.lists(strategies.sampled_from(EXTREMES), min_size=1, max_size=12),
    strategies.integers(1, 2),
    strategies.sets(strategies.integers(0, 11), max_size=3),
    strategies.sampled_from((-1, 1, 2, 5, 12)),
    strategies.booleans(),
    strategies.booleans(),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_whatever_the_weights_are(
    values: list[float],
    relations: int,
    excluded: set[int],
    fan_out: int,
    replace: bool,
    has_times: bool,
) -> None:
    count = len(values)
    weights = torch.tensor(values, dtype=torch.float64)
    graph = _star(count, relations)
    sampler = NeighborSampler(
        graph,
        [dict.fromkeys(graph.relations, fan_out) if relations > 1 else fan_out],
        strategy="weighted",
        weights=weights,
        replace=replace,
        edge_times=torch.arange(count, 0, -1) if has_times else None,
    )
    left_out = sorted(each for each in excluded if each < count) or None
    moments = {"times": [count // 2 + 1]} if has_times else {}
    found = _taken(sampler, exclude=left_out, **moments)
    plain = sampler.sample_plainly(
        sampler.require_seeds([0]), 0, exclude=left_out,
        times=torch.tensor(moments["times"]) if has_times else None,
    )  # fmt: skip
    assert found == plain.blocks[0].edges.tolist()
    kinds = graph.relation.tolist()
    wanted = 0
    for kind in set(kinds):
        heavy = [
            edge
            for edge, weight in enumerate(values)
            if weight > 0
            and kinds[edge] == kind
            and edge not in (left_out or ())
            and (not has_times or count - edge <= count // 2 + 1)
        ]
        assert {each for each in found if kinds[each] == kind} <= set(heavy)
        if replace and fan_out >= 0:
            wanted += fan_out if heavy else 0
        else:
            wanted += len(heavy) if fan_out < 0 else min(fan_out, len(heavy))
    assert len(found) == wanted
    if not replace:
        assert len(set(found)) == len(found)


def test_what_is_left_beside_a_large_weight_is_drawn_in_proportion() -> None:
    weights = torch.tensor([3.0, 1e16, 1.0, 0.0], dtype=torch.float64)
    sampler = NeighborSampler(_star(4), [2], strategy="weighted", weights=weights)
    found = Counter(tuple(sorted(_taken(sampler, number))) for number in range(2000))
    assert set(found) == {(0, 1), (1, 2)}
    # 1,500 are expected: 100 away is more than five standard deviations.
    assert abs(found[0, 1] - 1500) < 100


@pytest.mark.parametrize("kind", ["source", "target", "both"])
def test_negatives_by_weights_of_any_size(kind: str) -> None:
    # Every node is free but node 0, which has nearly all of the weight.
    graph = RelationalGraph.from_edges([0, 0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 0, 0, 0], num_nodes=4)
    weights = torch.tensor([1e300, 3e-10, 1e-10, 0.0], dtype=torch.float64)
    sampler = NegativeSampler(graph, replaces=kind, weights=weights)
    if kind == "both":
        made = sampler.sample([1] * 1000, [0] * 1000)
        found = Counter(
            zip(made.sources.flatten().tolist(), made.targets.flatten().tolist(), strict=True)
        )
        assert set(found) <= set(itertools.product((1, 2), (1, 2)))
        assert abs(found[1, 1] - 562) < 80  # 9 of 16, five standard deviations
        return
    ends = ([1] * 1000, [0] * 1000) if kind == "target" else ([0] * 1000, [1] * 1000)
    made = sampler.sample(*ends)
    drawn = Counter(getattr(made, f"{kind}s").flatten().tolist())
    assert set(drawn) == {1, 2}
    assert abs(drawn[1] - 750) < 70


def test_negatives_are_the_same_in_plain_python() -> None:
    graph = RelationalGraph.from_edges([0, 0, 1, 2], [1, 2, 0, 0], num_nodes=5)
    for values in itertools.permutations((1e308, 1e308, 1e16, 1.0, 5e-324)):
        weights = torch.tensor(values, dtype=torch.float64)
        for kind in ("target", "source", "both", "either"):
            sampler = NegativeSampler(graph, replaces=kind, weights=weights, allows_loops=False)
            one = sampler.sample([0, 2], [1, 0], count=3, number=1)
            other = sampler.sample_plainly([0, 2], [1, 0], count=3, number=1)
            assert torch.equal(one.sources, other.sources)
            assert torch.equal(one.targets, other.targets)


def test_an_exponent_that_is_too_large_is_named() -> None:
    sampler = NegativeSampler(_star(3), exponent=5000.0)
    with pytest.raises(SamplingError, match="a node of degree 3 weighs more than float64"):
        sampler.sample([1], [0])


def test_sums_are_finite_and_ascend() -> None:
    for values in itertools.product(EXTREMES, repeat=3):
        sums = add_up(values)
        assert sums == sorted(sums)
        assert math.isfinite(sums[-1])
        assert (sums[-1] > 0) is any(values)
