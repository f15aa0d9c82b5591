import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.peers.arxiv import CLASSES, FOLDER, load_arxiv
from shorthaul.errors import RowReadError, SamplingError, SeedRangeError, ShortReadError
from shorthaul.graphs import MiniBatch, MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.storage import open_engine
from shorthaul.storage.testing.faulty_engine import Fault, faulty_engine
from shorthaul.tensors import open as open_table
from shorthaul.tensors import unified
from shorthaul.tensors.files.formats import find_layout
from shorthaul.tensors.tables.disk.disk_table import DiskTable
from shorthaul.tensors.tables.table import HostTable, TableStats
from tests.graphs.sampled_graphs import random_graph, verify_sample

NODES = 3000


@pytest.fixture(scope="module")
def graph() -> RelationalGraph:
    return random_graph(NODES, 30_000, 2)


@pytest.fixture(scope="module")
def features() -> torch.Tensor:
    return torch.randn(NODES, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def labels() -> torch.Tensor:
    return torch.randint(7, (NODES,), generator=torch.Generator().manual_seed(1))


BEFORE: set[threading.Thread] = set()  # those of other tests in this process


@pytest.fixture(autouse=True)
def _threads_of_others() -> None:
    BEFORE.clear()
    BEFORE.update(threading.enumerate())


def threads_left() -> list[str]:
    return [
        each.name
        for each in threading.enumerate()
        if each.name.startswith("shorthaul ") and each not in BEFORE
    ]


def contents(batch: MiniBatch) -> tuple[Any, ...]:
    return (
        batch.seeds.tolist(),
        batch.input_nodes.tolist(),
        [e.sources.tolist() for e in batch.blocks],
    )


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("kind", ["plain", "unified"])
def test_every_seed_comes_once_with_its_features_and_labels(
    graph: RelationalGraph, features: torch.Tensor, labels: torch.Tensor, prefetch: int, kind: str
) -> None:
    seeds = torch.arange(5, NODES, 7)
    table = unified(features) if kind == "unified" else features
    loader = MiniBatchLoader(
        graph, table, labels, seeds, 64, [4, 3], shuffle=True, prefetch=prefetch
    )
    seen: list[int] = []
    for number, batch in enumerate(loader):
        assert batch.number == number
        assert type(batch.features) is torch.Tensor
        assert torch.equal(batch.features, features[batch.input_nodes])
        assert torch.equal(batch.labels, labels[batch.seeds])
        verify_sample(graph, batch)  # type: ignore[arg-type]
        seen += batch.seeds.tolist()
    assert len(loader) == number + 1
    assert sorted(seen) == seeds.tolist()
    assert seen != seeds.tolist()
    assert threads_left() == []


def test_a_seed_fixes_everything_and_epochs_differ(graph: RelationalGraph) -> None:
    def epochs(seed: int, prefetch: int) -> list[list[tuple[Any, ...]]]:
        loader = MiniBatchLoader(
            graph, None, None, range(500), 100, [5, 5], shuffle=True, seed=seed, prefetch=prefetch
        )
        return [[contents(each) for each in loader] for _ in range(2)]

    first = epochs(3, 2)
    assert first == epochs(3, 0)
    assert first[0] != first[1]
    assert first != epochs(4, 2)


def test_an_epoch_can_be_chosen(graph: RelationalGraph) -> None:
    loader = MiniBatchLoader(graph, seeds=range(200), batch_size=50, fan_outs=[3], shuffle=True)
    epochs = [[contents(each) for each in loader] for _ in range(3)]
    loader.epoch = 1
    assert [contents(each) for each in loader] == epochs[1]


def test_kept_batches_are_not_overwritten_and_dropped_ones_are_reused(
    graph: RelationalGraph, features: torch.Tensor
) -> None:
    loader = MiniBatchLoader(graph, features, batch_size=200, fan_outs=[5, 5])
    kept = list(loader)
    for batch in kept:
        assert torch.equal(batch.features, features[batch.input_nodes])
    addresses = {batch.features.data_ptr() for batch in kept}
    assert len(addresses) == len(kept)
    del kept, batch
    used = set()
    for batch in loader:
        used.add(batch.features.data_ptr())
    # Being trained on, waiting, being gathered; sizes of batches differ by a class or two.
    assert len(used) < len(addresses)
    mapped_bytes = loader._pool.mapped_bytes
    for _ in loader:
        pass
    assert loader._pool.mapped_bytes == mapped_bytes


def test_a_view_of_a_batch_keeps_its_memory(graph: RelationalGraph, features: torch.Tensor) -> None:
    loader = MiniBatchLoader(graph, features, batch_size=500, fan_outs=[5], prefetch=1)
    column, expected = None, None
    for number, batch in enumerate(loader):
        if number == 0:
            column, expected = batch.features[:, 3], features[batch.input_nodes][:, 3]
    assert torch.equal(column, expected)


def test_leaving_early_failing_and_forgetting_end_the_threads(
    graph: RelationalGraph, features: torch.Tensor
) -> None:
    loader = MiniBatchLoader(graph, features, batch_size=10, fan_outs=[3])
    for _ in loader:
        break
    assert threads_left() == []

    def train() -> None:
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert threads_left() == []
    iterator = iter(loader)
    next(iterator)
    assert len(threads_left()) == 2
    del iterator
    assert threads_left() == []
    assert len(list(loader)) == len(loader)


class FailingTable(HostTable):
    """A table whose disk fails at the third request."""

    def __init__(self, values: torch.Tensor, error: Exception) -> None:
        super().__init__(values)
        self.error, self.requests = error, 0

    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        self.requests += 1
        if self.requests == 3:
            raise self.error
        return super().gather(ids, out)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_failing_gather_comes_out_in_the_loop_with_its_rows(
    graph: RelationalGraph, features: torch.Tensor, prefetch: int
) -> None:
    cause = ShortReadError("features.npy", 4096, 512, 100)
    table = FailingTable(features, RowReadError("features.npy", [17, 4], cause))
    loader = MiniBatchLoader(graph, table, batch_size=100, fan_outs=[3], prefetch=prefetch)
    got = []
    with pytest.raises(RowReadError, match="rows 17, 4 were not read") as caught:
        got.extend(loader)
    assert caught.value.rows == (17, 4)
    assert len(got) == 2
    assert threads_left() == []
    assert len(list(loader)) == len(loader)  # the disk is back, and so is the loader


class LookingAhead(HostTable):
    """Remembers what was announced and what was then asked for.

    The first gather waits until `ahead` more were announced, so that threads which run in another
    order on a busy machine are seen alike.
    """

    def __init__(self, values: torch.Tensor, ahead: int) -> None:
        super().__init__(values)
        self.expected: list[list[int]] = []
        self.is_forgotten = False
        self._ahead = ahead
        self._is_far_enough = threading.Event()

    @property
    def looks_ahead(self) -> bool:
        return True

    def expect(self, ids: torch.Tensor) -> None:
        self.expected.append(ids.tolist())
        if len(self.expected) > self._ahead:
            self._is_far_enough.set()

    def forget_expected(self) -> None:
        self.is_forgotten = True

    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        assert self._is_far_enough.wait(60), f"never announced {self._ahead} batches ahead"
        assert self.expected.pop(0) == ids.tolist()
        return super().gather(ids, out)


def test_a_cache_that_looks_ahead_hears_of_coming_rows_in_order(
    graph: RelationalGraph, features: torch.Tensor
) -> None:
    table = LookingAhead(features, ahead=8)
    for _ in MiniBatchLoader(graph, table, batch_size=50, fan_outs=[3]):
        pass
    assert not table.expected
    assert table.is_forgotten


def test_features_by_type() -> None:
    edges = {
        ("author", "writes", "paper"): torch.randint(30, (2, 200)),
        ("venue", "prints", "paper"): torch.stack(
            [torch.randint(4, (200,)), torch.randint(30, (200,))]
        ),
    }
    graph = RelationalGraph.from_typed_edges(edges, {"author": 30, "paper": 40, "venue": 4})
    features = {"author": torch.randn(30, 5), "paper": torch.randn(40, 8)}
    labels = {"paper": torch.arange(40)}
    loader = MiniBatchLoader(graph, features, labels, ("paper", range(10)), 4, [3, 3])
    start = graph.nodes_of("paper").start
    for batch in loader:
        assert torch.equal(batch.labels, batch.seeds - start)
        assert set(batch.features) == {"author", "paper"}
        for name, rows in batch.features.items():
            nodes = batch.input_nodes[batch.type_positions[name]]
            assert torch.equal(rows, features[name][nodes - graph.nodes_of(name).start])


def test_workers_send_ids_and_the_parent_gathers(
    graph: RelationalGraph, features: torch.Tensor, labels: torch.Tensor
) -> None:
    loader = MiniBatchLoader(graph, features, labels, range(300), 64, [4, 4], shuffle=True)
    expected = [contents(each) for each in loader]
    workers = torch.utils.data.DataLoader(loader.samples(0), batch_size=None, num_workers=2)
    got = []
    for sample in workers:
        assert sample.blocks[0].index is None  # the graph stayed where it is
        batch = loader.complete(sample)
        assert torch.equal(batch.features, features[batch.input_nodes])
        verify_sample(graph, batch)  # type: ignore[arg-type]
        got.append(contents(batch))
    assert got == expected


def test_samples_out_of_range_are_refused(graph: RelationalGraph) -> None:
    samples = MiniBatchLoader(graph, seeds=range(10), batch_size=4, fan_outs=[2]).samples()
    assert len(samples) == 3
    with pytest.raises(IndexError, match="there are 3 samples"):
        samples[3]


def test_edge_cases(graph: RelationalGraph, features: torch.Tensor) -> None:
    assert list(MiniBatchLoader(graph, features, seeds=[], fan_outs=[3])) == []
    (batch,) = MiniBatchLoader(graph, features, seeds=[4, 4, 9], fan_outs=[])
    assert batch.seeds.tolist() == [4, 9]
    assert batch.seed_rows.tolist() == [0, 0, 1]
    assert torch.equal(batch.features, features[[4, 9]])
    dropped = MiniBatchLoader(graph, seeds=range(10), batch_size=4, drop_last=True, fan_outs=[1])
    assert [len(each.seeds) for each in dropped] == [4, 4]
    lonely = RelationalGraph.from_edges([], [], num_nodes=3)
    (only,) = MiniBatchLoader(lonely, torch.eye(3), fan_outs=[2, 2])
    assert torch.equal(only.features, torch.eye(3))


def test_batches_move_to_a_device(graph: RelationalGraph, features: torch.Tensor) -> None:
    loader = MiniBatchLoader(graph, features, seeds=range(10), fan_outs=[2], device="meta")
    (batch,) = loader
    assert batch.features.device.type == batch.blocks[0].sources.device.type == "meta"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on, got 0"),
        ({"prefetch": -1}, "prefetch must be a whole number from 0 on"),
        ({"features": torch.ones(3, 2)}, "features must have a row for each of 3,000 nodes"),
        ({"features": [1, 2]}, "must be a tensor or a unified tensor, got list"),
        ({"features": torch.ones(NODES, 2, requires_grad=True)}, "requires gradients"),
        ({"features": {"person": torch.ones(1)}}, "there is no node type 'person'"),
        ({"labels": {}}, "labels must be those of one node type"),
        ({"labels": torch.ones(2)}, "labels must have a row for each"),
        ({"seeds": ("node", [NODES])}, "is not a node: there are 3,000 of type `node`"),
        ({"fan_outs": [{"hates": 1}]}, "no relation"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    graph: RelationalGraph, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MiniBatchLoader(graph, **{"fan_outs": [2], **options})


def test_a_seed_out_of_range_is_refused_at_once(graph: RelationalGraph) -> None:
    with pytest.raises(SeedRangeError):
        MiniBatchLoader(graph, seeds=[0, NODES], fan_outs=[2])


def test_labels_of_another_type_are_refused() -> None:
    graph = RelationalGraph.from_typed_edges(
        {("a", "to", "b"): torch.tensor([[0], [0]])}, {"a": 2, "b": 2}
    )
    with pytest.raises(SamplingError, match="some seeds are not of it"):
        MiniBatchLoader(graph, labels={"b": torch.arange(2)}, fan_outs=[1])


@pytest.fixture
def file(features: torch.Tensor, tmp_path: Path) -> Path:
    path = tmp_path / "features.npy"
    np.save(path, features.numpy())
    return path


@pytest.mark.parametrize("cache", [None, "sieve", "belady"])
def test_rows_come_from_disk_as_they_come_from_memory(
    graph: RelationalGraph, features: torch.Tensor, file: Path, cache: Any
) -> None:
    with DiskTable(find_layout(file), cache=cache, cache_bytes="64KiB") as table:
        loader = MiniBatchLoader(graph, table, None, range(1000), 100, [3, 3], cache=0)
        for _ in range(2):
            for batch in loader:
                assert torch.equal(batch.features, features[batch.input_nodes])
            for _ in loader:  # stops early: what was announced is forgotten
                break
        stats = table.stats()
    assert stats.unique_rows > 0
    assert (stats.hits > 0) is (cache is not None)


def test_a_window_knows_better_than_the_past(graph: RelationalGraph, file: Path) -> None:
    hits = {}
    for cache in ("sieve", "belady"):
        with DiskTable(find_layout(file), cache=cache, cache_bytes="64KiB") as table:
            for _ in MiniBatchLoader(
                graph, table, seeds=range(2000), batch_size=50, fan_outs=[3, 3]
            ):
                pass
            hits[cache] = table.stats().hit_rate
    assert hits["belady"] > hits["sieve"]


@pytest.mark.parametrize("kind", ["errno", "short"])
def test_a_disk_that_fails_in_the_middle_names_the_rows(
    graph: RelationalGraph, features: torch.Tensor, file: Path, kind: Any
) -> None:
    engine = faulty_engine(open_engine("thread"), [Fault(kind, 60, action="read")])
    with engine, DiskTable(find_layout(file), engine=engine) as table:
        loader = MiniBatchLoader(graph, table, batch_size=20, fan_outs=[3])
        got: list[MiniBatch] = []
        with pytest.raises(RowReadError) as caught:
            got.extend(loader)
        assert threads_left() == []
        assert len(caught.value.rows) > 0
        assert all(0 <= row < NODES for row in caught.value.rows)
        for batch in got:
            assert torch.equal(batch.features, features[batch.input_nodes])
        assert len(list(loader)) == len(loader)  # one failure is not the end of the table


def test_graphsage_on_arxiv_has_the_same_losses_wherever_its_features_lie(tmp_path: Path) -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"ogbn-arxiv is not in {FOLDER}")
    data = load_arxiv()
    graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    np.save(tmp_path / "features.npy", data.features.numpy())
    on_disk = open_table(tmp_path / "features.npy", cache="belady", cache_bytes="8MiB")
    losses = []
    for table in (data.features, unified(data.features), on_disk):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(2 * 128, 32), torch.nn.Linear(2 * 32, CLASSES)]
        parameters = [each for layer in layers for each in layer.parameters()]
        optimizer = torch.optim.Adam(parameters, 3e-3)
        loader = MiniBatchLoader(
            graph, table, data.labels, data.train[:2048], 512, [10, 5], shuffle=True
        )
        losses.append([])
        for batch in loader:
            x = batch.features
            for layer, block in zip(layers, batch.blocks, strict=True):
                x = layer(torch.cat([x[: block.num_targets], block.reduce(x)], dim=1)).relu()
            loss = torch.nn.functional.cross_entropy(x, batch.labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    on_disk.close()
    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0]) == 4
    assert losses[0][-1] < losses[0][0]


def test_rows_on_disk_are_read_once_while_coming_batches_ask_for_them(tmp_path: Path) -> None:
    """Sixteen batches with all the same inputs: the table has a cache by default, and its bytes are counted."""
    nodes = 512
    source = torch.arange(nodes).repeat(nodes)
    graph = RelationalGraph.from_edges(source, torch.arange(nodes).repeat_interleave(nodes))
    values = torch.randn(nodes, 128)
    np.save(tmp_path / "features.npy", values.numpy())

    def read(**options) -> tuple[int, TableStats]:
        with open_table(tmp_path / "features.npy").table as table:
            loader = MiniBatchLoader(graph, table, None, None, 32, fan_outs=[-1], **options)
            for batch in loader:
                assert torch.equal(batch.features, values[batch.input_nodes.long()])
            return len(loader), table.stats()

    batches, stats = read()
    assert (batches, stats.misses, stats.hits) == (16, nodes, 15 * nodes)
    assert values.nbytes <= stats.read_bytes <= values.nbytes + 2 * 4096
    assert stats.saved_bytes == 15 * values.nbytes
    for without in ({"cache": 0}, {"prefetch": 0}):
        _, stats = read(**without)
        assert (stats.hits, stats.unique_rows) == (0, 16 * nodes)
        assert stats.read_bytes >= 16 * values.nbytes
    _, stats = read(cache="64KiB")  # a quarter of the rows
    assert 0.2 < stats.hit_rate < 0.26


def test_a_cache_of_the_users_stays(tmp_path: Path) -> None:
    graph = RelationalGraph.from_edges([0, 1], [1, 0])
    np.save(tmp_path / "features.npy", np.zeros((2, 4), np.float32))
    with open_table(tmp_path / "features.npy", cache="sieve").table as table:
        own = table.cache
        MiniBatchLoader(graph, table)
        assert table.cache is own
    with pytest.raises(SamplingError, match="cache: expected bytes such as"):
        MiniBatchLoader(graph, cache="much")


INTERRUPTED = """
    import os, sys, threading, torch
    from shorthaul.graphs import MiniBatchLoader, RelationalGraph

    ends = torch.randint(2000, (2, 20000))
    graph = RelationalGraph.from_edge_index(ends, num_nodes=2000)
    loader = MiniBatchLoader(graph, torch.randn(2000, 16), batch_size=1, fan_outs=[5, 5])
    try:
        while True:
            for batch in loader:
                print("batch", flush=True)
    except KeyboardInterrupt:
        left = [each.name for each in threading.enumerate()]
        print("left", left, flush=True)
"""


@pytest.mark.parametrize("is_caught", [True, False])
def test_control_c_ends_the_loader_and_the_process(is_caught: bool) -> None:
    script = textwrap.dedent(INTERRUPTED)
    if not is_caught:
        script = script.replace("except KeyboardInterrupt", "except ZeroDivisionError")
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline() == "batch\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    if is_caught:
        # The interrupt may come between a line and its end.
        assert output.endswith("left ['MainThread']\n"), errors
        assert process.returncode == 0
    else:
        assert "KeyboardInterrupt" in errors
        assert process.returncode not in (0, -signal.SIGSEGV, -signal.SIGABRT)


def test_a_process_may_end_in_the_middle_of_an_epoch() -> None:
    script = textwrap.dedent(INTERRUPTED).split("try:")[0]
    script += "iterator = iter(loader)\nnext(iterator)\nprint('ends')\n"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ends\n", "", 0)


def test_seeds_have_moments_and_labels_of_their_own() -> None:
    graph = RelationalGraph.from_edges([1, 2, 3], [0, 0, 0]).with_data(edges={"time": [5, 6, 7]})
    loader = MiniBatchLoader(
        graph,
        torch.arange(4.0)[:, None],
        seeds=[0, 0, 0],
        batch_size=2,
        fan_outs=NeighborSampler(graph, [-1], edge_times="time"),
        times=[7, 5, 4],
        seed_labels=torch.tensor([70, 50, 40]),
        prefetch=0,
    )
    one, other = loader
    assert one.labels is not None
    assert one.trees is not None
    assert one.inputs is not None
    assert (one.labels.tolist(), one.inputs.tolist()) == ([70, 50], [0, 1])
    assert one.blocks[0].degrees().tolist() == [3, 1]
    assert one.trees.tolist() == [0, 1, 0, 0, 0, 1]
    assert other.labels is not None
    assert (other.labels.tolist(), other.blocks[0].num_edges) == ([40], 0)
    with pytest.raises(SamplingError, match="pass `labels` or `seed_labels`"):
        MiniBatchLoader(graph, None, torch.ones(4), seed_labels=torch.ones(4))
    with pytest.raises(SamplingError, match="seed_labels must have a row for each of 2 seeds"):
        MiniBatchLoader(graph, seeds=[0, 1], seed_labels=torch.ones(3))
