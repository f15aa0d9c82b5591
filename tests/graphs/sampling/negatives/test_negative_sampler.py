"""Negative edges: against plain Python, against counted pairs, and as promised."""

import itertools
import pickle
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import GraphError, NoNegativeError, SamplingError
from shorthaul.graphs import NegativeEdges, NegativeSampler, RelationalGraph
from shorthaul.settings import settings as shorthaul_settings
from tests.graphs.sampled_graphs import random_graph

TIMES = st.integers(0, 4)


def pairs_of(negatives: NegativeEdges) -> list[tuple[int, int]]:
    return list(
        zip(negatives.sources.flatten().tolist(), negatives.targets.flatten().tolist(), strict=True)
    )


def edges_of(graph: RelationalGraph) -> set[tuple[int, int, int]]:
    columns = (graph.source, graph.target, graph.relation)
    return set(zip(*(each[:].tolist() for each in columns), strict=True))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A graph of two types and three relations, everything that can be asked for, and positives."""
    users, items = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    nodes = users + items
    relations = [("user", "buys", "item"), ("item", "like", "item"), ("user", "knows", "user")]
    ranges = {"user": (0, users - 1), "item": (users, nodes - 1)}

    def ends(relation: int) -> st.SearchStrategy[tuple[int, int, int]]:
        one, _, other = relations[relation]
        return st.tuples(st.integers(*ranges[one]), st.integers(*ranges[other]), st.just(relation))

    edge = st.one_of(*map(ends, range(3)))
    edges = draw(st.lists(edge, min_size=0, max_size=40))
    columns = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3).unbind(1)
    graph = RelationalGraph.from_edges(
        *columns,
        relations=relations,
        nodes_per_type={"user": users, "item": items},
        index_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
    )
    options: dict[str, Any] = {
        "replaces": draw(st.sampled_from(["target", "source", "either", "both"])),
        "among": draw(st.sampled_from(["type", "relation"])),
        "avoids": draw(st.booleans()),
        "allows_loops": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }
    weighing = draw(st.sampled_from(["none", "degree", "weights"]))
    if weighing == "degree":
        options["exponent"] = draw(st.sampled_from([0.75, 1.0]))
    elif weighing == "weights":
        weight = st.sampled_from([0.0, 1.0, 0.25, 3.0])
        options["weights"] = torch.tensor(draw(st.lists(weight, min_size=nodes, max_size=nodes)))
    if draw(st.booleans()):
        options["groups"] = draw(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes))
    positives = draw(st.lists(edge, max_size=6))
    asked: dict[str, Any] = {
        "count": draw(st.integers(1, 4)),
        "number": draw(st.integers(0, 5)),
    }
    if draw(st.booleans()):
        options["node_times"] = draw(st.lists(TIMES, min_size=nodes, max_size=nodes))
        options["includes_equal"] = draw(st.booleans())
        size = len(positives)
        asked["times"] = draw(st.lists(TIMES, min_size=size, max_size=size))
    return {
        "graph": graph,
        "options": options,
        "positives": [list(each) for each in zip(*positives, strict=True)] or [[], [], []],
        "asked": asked,
    }


def try_drawing(draw: Any, request: dict[str, Any], **more: Any) -> NegativeEdges | int:
    """The negatives, or which positive has none."""
    try:
        return draw(*request["positives"], **request["asked"], **more)
    except NoNegativeError as error:
        return error.position


def candidates_of(request: dict[str, Any], at: int) -> dict[tuple[int, int], float]:
    """Every pair that may be a negative of a positive, with its share: from the definition."""
    graph, options = request["graph"], request["options"]
    source, target, relation = (column[at] for column in request["positives"])
    edges = list(
        zip(graph.source.tolist(), graph.target.tolist(), graph.relation.tolist(), strict=True)
    )

    def weigh(end: int, node: int) -> float:
        name = graph.relations[relation][0 if end == 0 else 2]
        if node not in graph.nodes_of(name):
            return 0.0
        degree = sum(each[end] == node and each[2] == relation for each in edges)
        if (options["among"] == "relation" or "exponent" in options) and degree == 0:
            return 0.0
        true = (source, target)[end]
        if "groups" in options and options["groups"][node] != options["groups"][true]:
            return 0.0
        if "node_times" in options:
            moment, time = request["asked"]["times"][at], options["node_times"][node]
            if time > moment or (time == moment and not options["includes_equal"]):
                return 0.0
        if "weights" in options:
            return float(options["weights"][node])
        return float(degree ** options.get("exponent", 0.0))

    def replace(*, first: bool, second: bool) -> dict[tuple[int, int], float]:
        every = range(graph.num_nodes)
        ones = {n: weigh(0, n) for n in every} if first else {source: 1.0}
        others = {n: weigh(1, n) for n in every} if second else {target: 1.0}
        found = {}
        for one, other in itertools.product(ones, others):
            if one == other and not options["allows_loops"]:
                continue
            is_true = (one, other, relation) in edges or (one, other) == (source, target)
            if ones[one] * others[other] > 0 and not (options["avoids"] and is_true):
                found[one, other] = ones[one] * others[other]
        total = sum(found.values())
        return {pair: weight / total for pair, weight in found.items()}

    kinds = {
        "target": [(False, True)],
        "source": [(True, False)],
        "both": [(True, True)],
        "either": [(False, True), (True, False)],
    }[options["replaces"]]
    parts = [replace(first=first, second=second) for first, second in kinds]
    return {
        pair: sum(part.get(pair, 0.0) for part in parts) / len(parts)
        for pair in set().union(*parts)
    }


@settings(max_examples=100, deadline=None)
@given(requests())
def test_the_kernel_draws_what_plain_python_draws_and_what_was_promised(
    request: dict[str, Any],
) -> None:
    graph, options = request["graph"], request["options"]
    sampler = NegativeSampler(graph, **options)
    found = try_drawing(sampler.sample, request)
    plain = try_drawing(sampler.sample_plainly, request)
    if isinstance(found, int):
        assert found == plain
        if options["replaces"] != "either":
            assert candidates_of(request, found) == {}
        return
    assert isinstance(plain, NegativeEdges)
    assert pairs_of(found) == pairs_of(plain)
    assert found.sources.dtype is graph.index_dtype
    count = request["asked"]["count"]
    assert found.sources.shape == (len(request["positives"][0]), count)
    for n, pair in enumerate(pairs_of(found)):
        assert pair in candidates_of(request, n // count)


@settings(max_examples=12, deadline=None)
@given(requests())
def test_disk_and_any_number_of_threads_draw_the_same(request: dict[str, Any]) -> None:
    graph = request["graph"]
    with tempfile.TemporaryDirectory() as folder:
        graph.save(Path(folder) / "graph", ["target", "pairs_source", "pairs_target"])
        opened = RelationalGraph.open(Path(folder) / "graph")
        found = [
            try_drawing(
                NegativeSampler(each, **request["options"]).sample, request, threads=threads
            )
            for each, threads in ((graph, 1), (graph, 3), (opened, 1), (opened, 2))
        ]
    first = found[0]
    for each in found[1:]:
        if isinstance(first, int):
            assert each == first
        else:
            assert isinstance(each, NegativeEdges)
            assert pairs_of(each) == pairs_of(first)


def test_many_negatives_are_the_same_on_any_number_of_threads(tmp_path: Path) -> None:
    graph = random_graph(500, 8_000, 3)
    graph.save(tmp_path / "graph")
    opened = RelationalGraph.open(tmp_path / "graph")
    edges, true = torch.arange(8_000), edges_of(graph)
    for options in ({}, {"exponent": 0.75, "replaces": "both"}, {"replaces": "either"}):
        sampler = NegativeSampler(graph, seed=3, **options)
        one = sampler.sample_edges(edges, count=3, number=1, threads=1)
        for threads in (2, 5):
            more = sampler.sample_edges(edges, count=3, number=1, threads=threads)
            assert pairs_of(more) == pairs_of(one)
        disk = NegativeSampler(opened, seed=3, **options).sample_edges(edges, count=3, number=1)
        assert pairs_of(disk) == pairs_of(one)
        relations = one.relations.repeat_interleave(3).tolist()
        drawn = {(*pair, kind) for pair, kind in zip(pairs_of(one), relations, strict=True)}
        assert not drawn & true


def _statistic(drawn: Counter[tuple[int, int]], shares: dict[tuple[int, int], float]) -> float:
    total = sum(drawn.values())
    return sum(
        (drawn[each] - share * total) ** 2 / (share * total) for each, share in shares.items()
    )


@pytest.mark.parametrize("replaces", ["target", "source", "either", "both"])
@pytest.mark.parametrize("exponent", [0.0, 0.75])
@pytest.mark.parametrize("density", ["sparse", "dense"])
def test_pairs_are_as_likely_as_their_weights_say(
    replaces: str, exponent: float, density: str
) -> None:
    size = 6
    every = [(one, other) for one in range(size) for other in range(size)]
    if density == "sparse":
        edges = [(0, 1), (0, 1), (0, 2), (3, 1), (4, 1), (5, 5), (2, 0), (1, 3), (0, 4)]
    else:  # so few pairs are free that most are looked for among all
        edges = [each for each in every if each not in ((0, 2), (0, 4), (1, 1), (3, 1), (5, 1))]
    graph = RelationalGraph.from_edges(*zip(*edges, strict=True), num_nodes=size)
    options = {"replaces": replaces, "among": "type", "avoids": True, "allows_loops": True}
    if exponent:
        options["exponent"] = exponent
    request = {"graph": graph, "options": options, "positives": [[0], [1], [0]], "asked": {}}
    shares = candidates_of(request, 0)
    negatives = NegativeSampler(graph, replaces=replaces, exponent=exponent, seed=5).sample(
        [0], [1], count=20_000
    )
    drawn = Counter(pairs_of(negatives))
    assert set(drawn) == set(shares)
    freedom = max(1, len(shares) - 1)
    assert _statistic(drawn, shares) < freedom + 5 * (2 * freedom) ** 0.5 + 12


def test_what_is_left_is_found_where_nearly_every_pair_is_an_edge(tmp_path: Path) -> None:
    size = 30
    every = [(one, other) for one in range(size) for other in range(size)]
    free = [(0, 29), (17, 3), (29, 0)]
    edges = [each for each in every if each not in free]
    graph = RelationalGraph.from_edges(*zip(*edges, strict=True), num_nodes=size)
    graph.save(tmp_path / "graph", ["target"])
    for each in (graph, RelationalGraph.open(tmp_path / "graph")):
        sampler = NegativeSampler(each, replaces="both")
        drawn = Counter(pairs_of(sampler.sample([5], [5], count=60, number=2)))
        assert set(drawn) == set(free)
        plain = sampler.sample_plainly([5], [5], count=60, number=2)
        assert Counter(pairs_of(plain)) == drawn


def test_an_edge_without_a_negative_is_named() -> None:
    graph = RelationalGraph.from_edges([0, 0, 1], [2, 3, 3], num_nodes=4, relations=["r"])
    full = RelationalGraph.from_edges(
        [0, 0, 0, 0, 1], [0, 1, 2, 3, 3], num_nodes=4, relations=["r"]
    )
    with pytest.raises(NoNegativeError, match="edge 1, from node 0 to node 2 by `node r node`"):
        NegativeSampler(full).sample([1, 0], [3, 2])
    with pytest.raises(NoNegativeError):  # a pool of which every member is a neighbor
        NegativeSampler(graph, among="relation").sample([0], [2])
    assert NegativeSampler(full, avoids=False).sample([0], [2]).targets.numel() == 1


def test_edges_of_another_graph_are_avoided() -> None:
    graph = RelationalGraph.from_edges([0], [1], num_nodes=4)
    every_split = RelationalGraph.from_edges([0, 0, 0], [1, 2, 0], num_nodes=4)
    drawn = NegativeSampler(graph, avoids=every_split).sample([0], [1], count=50)
    assert set(drawn.targets.flatten().tolist()) == {3}
    with pytest.raises(SamplingError, match="same nodes and relations, but its nodes_per_type"):
        NegativeSampler(graph, avoids=RelationalGraph.from_edges([0], [1]))


def test_samples_are_numbered_and_seeded() -> None:
    graph = random_graph(200, 600)
    sampler = NegativeSampler(graph, seed=1)
    first, second = (
        sampler.sample_edges([1, 2, 3], count=9),
        sampler.sample_edges([1, 2, 3], count=9),
    )
    assert (first.number, second.number) == (0, 1)
    assert pairs_of(first) != pairs_of(second)
    copied = pickle.loads(pickle.dumps(sampler))
    assert pairs_of(copied.sample_edges([1, 2, 3], count=9)) == pairs_of(first)
    other = NegativeSampler(graph, seed=2).sample_edges([1, 2, 3], count=9, number=0)
    assert pairs_of(other) != pairs_of(first)


def test_python_threads_may_share_a_sampler() -> None:
    graph = random_graph(300, 3_000)
    sampler = NegativeSampler(graph, exponent=0.75)
    with ThreadPoolExecutor(4) as threads:
        got = list(
            threads.map(
                lambda n: pairs_of(sampler.sample_edges([7, 8], count=5, number=n)), range(16)
            )
        )
    assert got == [pairs_of(sampler.sample_edges([7, 8], count=5, number=n)) for n in range(16)]


def test_without_a_compiler_the_pairs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(30, 200)
    expected = pairs_of(NegativeSampler(graph).sample_edges([3, 4], count=6))
    with shorthaul_settings.override(kernels="torch"):
        assert pairs_of(NegativeSampler(graph).sample_edges([3, 4], count=6)) == expected


GRAPH = RelationalGraph.from_typed_edges(
    {("a", "to", "b"): torch.tensor([[0, 1], [1, 0]]), ("b", "of", "a"): torch.tensor([[0], [0]])}
)


@pytest.mark.parametrize(
    ("make", "asked", "told"),
    [
        (
            {"replaces": "all"},
            None,
            "replaces must be one of target, source, either, both, got 'all'",
        ),
        ({"among": "all"}, None, "among must be one of type, relation, got 'all'"),
        ({"exponent": -1}, None, "exponent must be a number from 0 on, got -1"),
        ({"exponent": float("nan")}, None, "exponent must be a number from 0 on, got nan"),
        ({"avoids": "edges"}, None, "avoids must be True, False or a graph, got str"),
        ({"weights": [1.0, -1.0, 1.0, 1.0]}, None, "the weight of node 1 is -1.0"),
        ({"weights": [1.0] * 4, "exponent": 1}, None, "by `weights` or by `exponent`, not by both"),
        ({"groups": [0.5] * 4}, None, "`groups` must hold whole numbers"),
        ({"seed": "x"}, None, "seed must be a whole number"),
        ({}, {"count": 0}, "count must be a whole number from 1 on, got 0"),
        ({}, {"relations": None}, "the graph has 2 relations: pass `relations`"),
        ({}, {"relations": [3]}, "relation 3 at position 0 is none of the graph's 2"),
        ({}, {"targets": [2, 3]}, "there are 1 sources, but 2 targets"),
        ({}, {"targets": [0]}, r"targets\[0\] is node 0, but a target of `a to b` is of type `b`"),
        ({}, {"times": [1]}, "`times` without `node_times`"),
        ({"node_times": [1] * 4}, {}, "`node_times` without `times`"),
        ({"node_times": [1] * 4}, {"times": [1, 2]}, "there are 1 sources, but 2 times"),
    ],
)
def test_what_does_not_fit_is_named(make: dict, asked: dict | None, told: str) -> None:
    given = {"sources": [0], "targets": [2], "relations": "to", **(asked or {})}
    with pytest.raises(GraphError, match=told):
        NegativeSampler(GRAPH, **make).sample(**given)


def test_pairs_that_chance_does_not_find_are_as_likely_as_their_weights() -> None:
    """Nearly every attempt is the loop of the one heavy node, which is no negative."""
    size, count = 7, 20_000
    weights = [1e15, 1.0, 2.0, 0.0, 1.0, 3.0, 1.0]
    graph = RelationalGraph.from_edges([0, 0, 2], [5, 5, 0], num_nodes=size)
    options: dict[str, Any] = {
        "replaces": "both", "allows_loops": False, "weights": torch.tensor(weights).double()
    }  # fmt: skip
    rule = {"among": "type", "avoids": True}
    request = {
        "graph": graph, "options": options | rule, "positives": [[1], [2], [0]], "asked": {}
    }  # fmt: skip
    shares = candidates_of(request, 0)
    drawn = Counter(pairs_of(NegativeSampler(graph, **options).sample([1], [2], count=count)))
    likely = {pair: share for pair, share in shares.items() if share > 1e-9}
    assert (
        set(drawn)
        == set(likely)
        == {(0, 1), (0, 2), (0, 4), (0, 6), (1, 0), (4, 0), (5, 0), (6, 0)}
    )
    assert _statistic(drawn, likely) < 7 + 5 * 14**0.5


@pytest.mark.timeout(120)
def test_pairs_that_chance_does_not_find_are_found_among_a_million_nodes() -> None:
    size = 1_000_000  # to look at every pair would take years
    weights = torch.full((size,), 1e-9, dtype=torch.float64)
    weights[17] = 1e12
    graph = RelationalGraph.from_edges([17, 5], [4, 17], num_nodes=size)
    for order in ({}, {"node_times": torch.arange(size).flip(0)}):
        sampler = NegativeSampler(
            graph, replaces="both", weights=weights, allows_loops=False, **order
        )
        times = {"times": [size, size // 2]} if order else {}
        drawn = sampler.sample([17, 5], [4, 17], count=40, number=0, threads=2, **times)
        pairs = pairs_of(drawn)
        if order:  # node 17 came late
            assert all(min(pair) >= size // 2 - 1 for pair in pairs[40:])
            pairs = pairs[:40]
        assert all((one == 17) != (other == 17) for one, other in pairs)
        assert not {(17, 4), (5, 17)} & set(pairs)
        assert {one == 17 for one, _ in pairs} == {True, False}
