import itertools
import os
import pickle
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shorthaul as sh
from shorthaul.errors import GraphError, SamplingError, SeedRangeError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.settings import settings as shorthaul_settings
from tests.graphs.sampled_graphs import random_graph, same_samples, star, verify_sample
from tests.pretended_gpu import pretend_gpu


def test_the_comparison_finds_differences() -> None:
    graph = random_graph()
    one, other = (NeighborSampler(graph, [3, 2], seed=seed).sample([1, 2]) for seed in (0, 1))
    assert same_samples(one, one) == ""
    assert same_samples(one, other) != ""


FAN_OUTS = st.lists(
    st.one_of(
        st.integers(-1, 6),
        st.fixed_dictionaries({0: st.integers(-1, 3), 1: st.integers(-1, 3)}),
    ),
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    FAN_OUTS,
    st.booleans(),
    st.booleans(),
    st.sampled_from([torch.int32, torch.int64]),
    st.lists(st.integers(0, 29), max_size=9),
)
def test_the_kernel_samples_what_plain_python_samples(
    seed: int,
    fan_outs: list,
    replace: bool,
    resample: bool,
    dtype: torch.dtype,
    seeds: list[int],
) -> None:
    graph = random_graph(30, 150, 2, seed=seed, dtype=dtype)
    sampler = NeighborSampler(graph, fan_outs, replace=replace, resample=resample, seed=seed)
    sample = sampler.sample(seeds, number=seed % 7)
    assert same_samples(sample, sampler.sample_plainly(seeds, seed % 7)) == ""
    assert sample.seeds[sample.seed_rows.long()].tolist() == seeds
    verify_sample(graph, sample)


def test_rows_longer_than_a_word_are_sampled_as_in_plain_python() -> None:
    graph = star([65, 200, 5000, 64, 0, 1])
    for fan_out in (1, 63, 64, 150, 4999):
        sampler = NeighborSampler(graph, [fan_out])
        assert (
            same_samples(sampler.sample(range(6), number=1), sampler.sample_plainly(range(6), 1))
            == ""
        )


@pytest.mark.parametrize("is_hashed", [False, True])
def test_both_ways_of_relabeling_agree(is_hashed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(3000, 40_000)
    limit = 0 if is_hashed else 2**40
    monkeypatch.setattr("shorthaul.graphs.sampling.sampler.HASHED_FROM_NODES", limit)
    sampler = NeighborSampler(graph, [8, 6])
    for number in range(5):  # the table keeps what earlier samples wrote
        seeds = torch.arange(number, 3000, 50)
        sample = sampler.sample(seeds, number=number)
        assert same_samples(sample, sampler.sample_plainly(seeds, number)) == ""


@pytest.mark.parametrize("resample", [True, False])
def test_any_number_of_threads_samples_the_same(resample: bool) -> None:
    graph = random_graph(5000, 60_000)
    sampler = NeighborSampler(graph, [9, 7], resample=resample)
    seeds = torch.arange(0, 5000, 3)
    one = sampler.sample(seeds, number=4, threads=1)
    for threads in (2, 3, 5):
        assert same_samples(one, sampler.sample(seeds, number=4, threads=threads)) == ""


def test_python_threads_may_share_a_sampler() -> None:
    graph = random_graph(2000, 30_000)
    sampler = NeighborSampler(graph, [5, 5])
    seeds = torch.arange(300)
    expected = [sampler.sample(seeds, number=number) for number in range(24)]
    with ThreadPoolExecutor(4) as threads:
        got = list(
            threads.map(lambda number: sampler.sample(seeds, number=number, threads=1), range(24))
        )
    assert [same_samples(*pair) for pair in zip(expected, got, strict=True)] == [""] * 24


def test_samples_are_numbered_and_seeded() -> None:
    graph = random_graph()
    sampler = NeighborSampler(graph, [3], seed=5)
    first, second = sampler.sample([1, 2, 3]), sampler.sample([1, 2, 3])
    assert (first.number, second.number) == (0, 1)
    assert same_samples(first, second) != ""
    assert same_samples(second, sampler.sample([1, 2, 3], number=1)) == ""
    other = NeighborSampler(graph, [3], seed=6)
    assert same_samples(first, other.sample([1, 2, 3], number=0)) != ""


def _chi_squared(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.parametrize(("degree", "fan_out"), [(7, 3), (6, 5), (5, 1)])
def test_every_subset_is_equally_likely(degree: int, fan_out: int) -> None:
    nodes = 7000
    graph = star([degree] * nodes)
    (block,) = NeighborSampler(graph, [fan_out], seed=1).sample(range(nodes)).blocks
    drawn = (block.positions % degree).view(nodes, fan_out)
    counts = Counter(map(tuple, drawn.tolist()))
    subsets = list(itertools.combinations(range(degree), fan_out))
    assert set(counts) <= set(subsets)
    free = len(subsets) - 1
    # Six standard deviations of a chi-squared; the seed is fixed, so it never fails by chance.
    assert _chi_squared([counts[each] for each in subsets]) < free + 6 * (2 * free) ** 0.5


def test_long_rows_are_drawn_evenly_too() -> None:
    degree, fan_out, nodes = 200, 20, 3000
    graph = star([degree] * nodes)
    (block,) = NeighborSampler(graph, [fan_out], seed=2).sample(range(nodes)).blocks
    drawn = (block.positions % degree).view(nodes, fan_out)
    assert bool((drawn.diff(dim=1) > 0).all())
    counts = torch.bincount(drawn.flatten(), minlength=degree).tolist()
    assert _chi_squared(counts) < degree + 6 * (2 * degree) ** 0.5


def test_with_replacement_every_draw_is_even() -> None:
    degree, fan_out, nodes = 5, 8, 3000
    graph = star([degree] * nodes)
    sampler = NeighborSampler(graph, [fan_out], replace=True, seed=3)
    (block,) = sampler.sample(range(nodes)).blocks
    assert block.degrees().tolist() == [fan_out] * nodes
    counts = torch.bincount(block.positions % degree, minlength=degree).tolist()
    assert _chi_squared(counts) < 4 + 6 * 8**0.5


def test_fan_outs_are_kept_to_in_every_layer() -> None:
    graph = random_graph(500, 20_000)
    sample = NeighborSampler(graph, [4, 3, 2]).sample(range(10))
    assert [int(block.degrees().max()) for block in sample.blocks] == [2, 3, 4]
    kept = NeighborSampler(graph, [4, 3, 2], resample=False).sample(range(10))
    assert [int(block.degrees().max()) for block in kept.blocks] == [4, 4, 4]
    smaller, larger = kept.blocks[1], kept.blocks[0]
    assert torch.equal(smaller.sources, larger.sources[: smaller.num_edges])
    verify_sample(graph, kept)


def test_fan_outs_per_relation_are_kept_to() -> None:
    graph = random_graph(100, 6000, 3)
    (block,) = NeighborSampler(graph, [{0: 2, 1: 0, 2: -1}]).sample(range(100)).blocks
    _, target = block.edge_index()
    per_relation = torch.bincount(target * 3 + block.relations, minlength=300).view(100, 3)
    everything = torch.bincount(graph.target * 3 + graph.relation, minlength=300).view(100, 3)
    assert torch.equal(per_relation[:, 0], everything[:, 0].clamp(max=2))
    assert per_relation[:, 1].tolist() == [0] * 100
    assert torch.equal(per_relation[:, 2], everything[:, 2])


def test_relations_go_by_name() -> None:
    edges = {
        ("author", "writes", "paper"): torch.tensor([[0, 1], [0, 0]]),
        ("paper", "cites", "paper"): torch.tensor([[1, 2], [0, 0]]),
    }
    graph = RelationalGraph.from_typed_edges(edges, {"author": 2, "paper": 3})
    sampler = NeighborSampler(graph, [{"writes": 1, ("paper", "cites", "paper"): -1}])
    (block,) = sampler.sample([graph.nodes_of("paper").start]).blocks
    assert block.relations.tolist() == [0, 1, 1]


def test_isolated_nodes_and_graphs_without_edges() -> None:
    graph = RelationalGraph.from_edges([], [], num_nodes=3)
    sample = NeighborSampler(graph, [5, 5]).sample([2, 0])
    assert [(each.num_sources, each.num_edges) for each in sample.blocks] == [(2, 0), (2, 0)]
    assert sample.input_nodes.tolist() == [2, 0]
    replaced = NeighborSampler(graph, [5], replace=True).sample([1])
    assert replaced.blocks[0].pointers.tolist() == [0, 0]


def test_no_seeds_and_no_hops() -> None:
    graph = random_graph()
    sample = NeighborSampler(graph, [3, 3]).sample([])
    assert [each.num_sources for each in sample.blocks] == [0, 0]
    assert NeighborSampler(graph, []).sample([4, 4]).input_nodes.tolist() == [4]


@pytest.mark.parametrize("seeds", [[0, 60], [3, -1], torch.tensor([2**40])])
def test_seeds_out_of_range_are_named(seeds: object) -> None:
    graph = random_graph(dtype=torch.int32)
    with pytest.raises(SeedRangeError, match=r"is not a node: the graph has 60") as caught:
        NeighborSampler(graph, [3]).sample(seeds)
    assert isinstance(caught.value, IndexError)
    assert caught.value.position == len(seeds) - 1


def test_seeds_that_are_no_ids_are_refused() -> None:
    with pytest.raises(GraphError):
        NeighborSampler(random_graph(), [3]).sample(torch.tensor([0.5]))


@pytest.mark.parametrize("kernels", ["torch", "generated"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "fan_out", [2**30, 2**31 - 1, 2**59, 2**61, 2**62, 2**63 - 1, 2**63, 2**80]
)
@pytest.mark.parametrize("by_relation", [False, True])
def test_more_edges_than_can_be_counted_or_kept(
    fan_out: int, by_relation: bool, dtype: torch.dtype, kernels: str
) -> None:
    graph = random_graph(10, 100, 2, dtype=dtype)
    fans = [{0: fan_out, 1: fan_out}] if by_relation else [fan_out]
    sampler = NeighborSampler(graph, fans, replace=True)
    rows = set(
        zip(
            graph.target.tolist(),
            graph.relation.tolist() if by_relation else [0] * 100,
            strict=True,
        )
    )
    is_over = len(rows) * fan_out > torch.iinfo(dtype).max
    if not is_over and (kernels == "torch" or fan_out < 2**59):
        return  # so many can be counted, and a machine might have the memory
    expected = SamplingError if is_over else MemoryError
    with (
        shorthaul_settings.override(kernels=kernels),
        pytest.raises(expected, match=r"more edges than torch|no memory for a sample"),
    ):
        sampler.sample(range(10))
    assert sampler.sample([]).seeds.tolist() == []


@pytest.mark.parametrize("kernels", ["torch", "generated"])
@pytest.mark.parametrize("fan_out", [2**31, 2**62, 2**63 - 1, 2**63, 2**64 + 1, 2**200])
def test_without_replacement_a_huge_fan_out_takes_all(fan_out: int, kernels: str) -> None:
    graph = random_graph(relations=2, dtype=torch.int32)
    with shorthaul_settings.override(kernels=kernels):
        for huge, every in ((fan_out, -1), ({0: fan_out, 1: 2}, {0: -1, 1: 2})):
            one, other = (
                NeighborSampler(graph, [each, each]).sample([3, 9, 3], number=1)
                for each in (huge, every)
            )
            assert same_samples(one, other) == ""


def test_zero_is_no_neighbors() -> None:
    for replace in (False, True):
        sample = NeighborSampler(random_graph(), [0, 3], replace=replace).sample([1, 2])
        assert [each.num_edges for each in sample.blocks][-1] == 0
        assert sample.input_nodes.tolist()[:2] == [1, 2]


@pytest.mark.parametrize("threads", [0, -1, 2.5, True, "two"])
def test_threads_must_be_a_count(threads: object) -> None:
    with pytest.raises(SamplingError, match="threads must be a whole number from 1 on, got"):
        NeighborSampler(random_graph(), [3]).sample([0], threads=threads)  # type: ignore[arg-type]


def test_any_number_of_threads_draws_the_same() -> None:
    graph = random_graph(3000, 30_000)
    sampler = NeighborSampler(graph, [4, 4])
    expected = sampler.sample(range(2000), number=3, threads=1)
    for threads in (2, 7, 10**9):
        found = sampler.sample(range(2000), number=3, threads=threads)
        assert same_samples(found, expected) == ""


def test_a_forked_child_draws_with_threads_that_were_asked_for() -> None:
    graph = random_graph(3000, 30_000)
    sampler = NeighborSampler(graph, [4, 4])
    expected = sampler.sample(range(2000), number=3, threads=2)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a team without threads would be waited for forever
        found = sampler.sample(range(2000), number=3, threads=2)
        os.write(writer, b"same" if same_samples(found, expected) == "" else b"not")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 10) == b"same"
    os.waitpid(child, 0)
    os.close(reader)


def test_results_outlive_later_samples_and_the_sampler() -> None:
    graph = random_graph(5000, 100_000)
    sampler = NeighborSampler(graph, [10, 10])
    kept = sampler.sample(range(1000), number=0)
    copy = [each.sources.clone() for each in kept.blocks]
    for number in range(1, 6):
        sampler.sample(range(1000), number=number)
    del sampler
    assert all(torch.equal(each.sources, one) for each, one in zip(kept.blocks, copy, strict=True))


def test_a_sampler_can_be_sent_to_another_process() -> None:
    sampler = NeighborSampler(random_graph(), [3, 2], seed=4)
    sampler.sample([0])
    copy = pickle.loads(pickle.dumps(sampler))
    assert same_samples(copy.sample([1, 2], number=9), sampler.sample([1, 2], number=9)) == ""


def test_without_kernels_the_sample_is_the_same() -> None:
    graph = random_graph()
    sampler = NeighborSampler(graph, [3, 2])
    expected = sampler.sample([5, 6], number=2)
    with shorthaul_settings.override(kernels="torch"):
        assert same_samples(sampler.sample([5, 6], number=2), expected) == ""


def test_a_seed_must_be_a_number() -> None:
    with pytest.raises(SamplingError, match="seed must be a whole number, got 'x'"):
        NeighborSampler(random_graph(), [3], seed="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("fan_outs", [[4, 3], [{0: 2, 1: -1}, 3], [-1, {0: 1, 1: 0}], []])
@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize(
    ("replace", "dtype"), [(False, torch.int32), (True, torch.int64)], ids=["subsets", "replace"]
)
def test_a_graph_on_disk_is_sampled_as_in_memory(
    fan_outs: list, resample: bool, replace: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    graph = random_graph(200, 3000, 2, dtype=dtype)
    graph.save(tmp_path / "graph")
    opened = RelationalGraph.open(tmp_path / "graph")
    options = {"resample": resample, "replace": replace, "seed": 5}
    expected = NeighborSampler(graph, fan_outs, **options).sample([*range(20), 3], number=3)
    from_disk = NeighborSampler(opened, fan_outs, **options)
    sample = from_disk.sample([*range(20), 3], number=3)
    assert same_samples(sample, expected) == ""
    assert same_samples(from_disk.sample_plainly([*range(20), 3], 3), expected) == ""
    if fan_outs:
        assert torch.equal(sample.blocks[0].edges, expected.blocks[0].edges)
        assert torch.equal(sample.blocks[0].relations, expected.blocks[0].relations)


def test_a_graph_on_disk_is_sampled_by_the_cpu_where_a_gpu_is_too(tmp_path: Path) -> None:
    graph = random_graph(200, 3000, 2)
    graph.save(tmp_path / "graph")
    expected = NeighborSampler(graph, [{0: 2, 1: -1}, 3], seed=5).sample([*range(20)], number=3)
    with pretend_gpu():
        opened = RelationalGraph.open(tmp_path / "graph")
        sample = NeighborSampler(opened, [{0: 2, 1: -1}, 3], seed=5).sample([*range(20)], number=3)
    assert same_samples(sample, expected) == ""


def test_a_graph_on_disk_without_edges_is_sampled(tmp_path: Path) -> None:
    graph = RelationalGraph.from_edges([], [], num_nodes=4)
    graph.save(tmp_path)
    sampler = NeighborSampler(RelationalGraph.open(tmp_path), [3, 2])
    assert [each.num_edges for each in sampler.sample([3, 1]).blocks] == [0, 0]
    assert sampler.sample([]).seeds.tolist() == []


def test_of_a_graph_on_disk_only_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    """A block for each row and each neighbor, and gaps of 8 KiB at most, of megabytes of index."""
    graph = random_graph(100_000, 1_000_000, dtype=torch.int32)
    graph.save(tmp_path)
    index_bytes = sum(each.nbytes for each in vars(graph.by_target()).values())
    sampler = NeighborSampler(RelationalGraph.open(tmp_path), [3, 2])
    with sh.meter() as meter:
        sample = sampler.sample([7, 50_000, 99_000])
    rows = sum(each.num_targets for each in sample.blocks)
    edges = sum(each.num_edges for each in sample.blocks)
    assert 0 < meter.read_bytes <= (rows + edges) * 12 * 2**10
    assert meter.read_bytes < index_bytes / 20
