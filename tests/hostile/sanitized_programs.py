"""What `test_sanitized` runs: kernels over ordinary and hostile inputs, compared with plain results.

`python -m tests.hostile.sanitized_programs sampling` runs one of them and prints "finished". More
words: `avx2` compiles for a processor without AVX-512, `teams` starts threads that a sanitizer knows.
"""

import contextlib
import itertools
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from shorthaul.errors import RowIndexError, ShorthaulError
from shorthaul.graphs import LinkLoader, NegativeSampler, NeighborSampler, RelationalGraph
from shorthaul.graphs.index import kernels as index_kernels
from shorthaul.graphs.index import plain as plain_indexes
from shorthaul.graphs.sampling import sampler as sampler_module
from shorthaul.graphs.sampling.candidates.edges_between import find_edges_between
from shorthaul.jit import CppSource, Function, NumberArgument, load_kernel, toolchain
from shorthaul.jit import kernel as kernel_module
from shorthaul.jit.runtime import OpenMPRuntime
from shorthaul.storage import open_file
from shorthaul.storage.uring_engine import UringEngine
from shorthaul.tensors.kernels import host_kernels, plain_rows
from shorthaul.tensors.kernels.stored_rows import StoredRows
from tests.graphs.sampled_graphs import random_graph, same_samples, verify_sample
from tests.hostile.damage import damage_bytes
from tests.hostile.hostile_files import KINDS, read_hostile, write_good

INDEXES = ("relation", "target", "source", "pairs_source", "pairs_target")


def run_sampling() -> None:
    """All hops, both tables of ids, both dtypes, hubs, repeated edges, memory and disk."""
    fans = ([4, 3], [-1, 0, 2], [{0: 2, 1: -1, 2: 0}, 70], [10**6], [])
    with tempfile.TemporaryDirectory() as folder:
        for dtype, hashed_from in itertools.product((torch.int32, torch.int64), (0, 2**23)):
            sampler_module.HASHED_FROM_NODES = hashed_from
            graph = _with_hubs(dtype)
            place = graph.save(Path(folder) / f"{dtype}-{hashed_from}")
            opened = RelationalGraph.open(place)
            for fan, replace, resample in itertools.product(fans, (False, True), (False, True)):
                if replace and fan == [10**6]:
                    continue
                options = {"replace": replace, "resample": resample}
                one, other = (NeighborSampler(each, fan, **options) for each in (graph, opened))
                for number, seeds in enumerate((range(0, 300, 2), [7, 7, 0], [])):
                    for threads in (1, 3):
                        sample = one.sample(seeds, number=number, threads=threads)
                        verify_sample(graph, sample)
                        on_disk = other.sample(seeds, number=number, threads=threads)
                        assert same_samples(sample, on_disk) == ""


def run_candidates() -> None:
    """Neighbors by weight, by time, shared and in trees of their own, without edges that are left out."""
    kinds: tuple[dict[str, Any], ...] = (
        {"strategy": "weighted"},
        {"strategy": "weighted", "replace": True},
        {"strategy": "weighted", "edge_times": "age"},
        {"strategy": "uniform", "node_times": "time", "edge_times": "age", "includes_equal": False},
        {"strategy": "uniform", "disjoint": True},
        {"strategy": "last", "node_times": "time"},
        {"strategy": "labor"},
    )
    fans = ([4, 3], [-1, 2], [{0: 2, 1: -1, 2: 0}, 5], [10**6, 1])
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.int32, torch.int64):
            graph = _with_data(_with_hubs(dtype))
            opened = RelationalGraph.open(graph.save(Path(folder) / str(dtype)))
            for options, fan, resample in itertools.product(kinds, fans, (False, True)):
                has_times = "node_times" in options or "edge_times" in options
                if (has_times and isinstance(fan[0], dict)) or (
                    options.get("replace") and max(fan[:1]) == 10**6
                ):
                    continue
                for seeds, threads in ((range(0, 300, 9), 3), ([299, 0, 0, 17], 1), ([], 1)):
                    found = [
                        NeighborSampler(each, fan, resample=resample, **options).sample(
                            seeds,
                            times=[40] * len(seeds) if has_times else None,
                            exclude=range(0, 9000, 7),
                            number=3,
                            threads=threads,
                        )
                        for each in (graph, opened)
                    ]
                    assert same_samples(*found) == ""
                    if not has_times and not options.get("disjoint"):
                        verify_sample(graph, found[0])


def run_negatives() -> None:
    """Pairs without an edge: every end that is replaced, pools of every kind, memory and disk."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"exponent": 0.75},
        {"among": "relation"},
        {"weights": "weight_of_node"},
        {"groups": "group"},
        {"node_times": "time", "includes_equal": False},
        {"weights": "weight_of_node", "groups": "group", "node_times": "time"},
        {"avoids": False, "allows_loops": False},
    )
    edges = range(0, 3000, 31)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.int32, torch.int64):
            graph = _with_data(random_graph(300, 3000, 3, dtype=dtype))
            opened = RelationalGraph.open(graph.save(Path(folder) / str(dtype)))
            for replaces, options in itertools.product(
                ("target", "source", "either", "both"), kinds
            ):
                times = [40] * len(edges) if "node_times" in options else None
                one, other = (
                    NegativeSampler(each, replaces=replaces, seed=3, **options).sample_edges(
                        edges, count=3, times=times, number=5, threads=3
                    )
                    for each in (graph, opened)
                )
                assert torch.equal(one.sources, other.sources)
                assert torch.equal(one.targets, other.targets)
    full = RelationalGraph.from_edges(*torch.cartesian_prod(*[torch.arange(7)] * 2).t()[:, :-1])
    drawn = NegativeSampler(full, replaces="both").sample([0], [0])  # the only pair that is free
    assert (drawn.sources.item(), drawn.targets.item()) == (6, 6)


def run_links() -> None:
    """Edges between given nodes and their reverses, and batches that do not see what they predict."""
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.int32, torch.int64):
            graph = _with_hubs(dtype).with_inverses()
            opened = RelationalGraph.open(graph.save(Path(folder) / str(dtype)))
            every = [each.long() for each in (graph.source, graph.target, graph.relation)]
            some = torch.arange(0, graph.num_edges, 37)
            asked = [each[some] for each in every]
            which, ids = find_edges_between(graph, *asked)
            for asking, column in zip(asked, every, strict=True):
                assert torch.equal(asking[which], column[ids])
            on_disk = find_edges_between(opened, *asked)
            assert torch.equal(on_disk[0], which)
            assert torch.equal(on_disk[1], ids)
            for each in (graph, opened):
                loader = LinkLoader(
                    each, None, some[:64], 32, [3, 2], negatives=NegativeSampler(each),
                    leaves_out="edge_and_reverse", prefetch=0,
                )  # fmt: skip
                for batch in loader:
                    for block in batch.blocks:
                        assert not torch.isin(block.edges.long(), batch.edges).any()


def run_indexes() -> None:
    """Every index against plain PyTorch, in shapes that are cut into chunks and that are not."""
    generator = torch.Generator().manual_seed(1)
    shapes = (
        (1, 0, 1),
        (1, 1, 1),
        (3, 500, 2),
        (70_000, 9_000, 3),
        (20, 40_000, 700),
        (5000, 30_000, 40),
    )
    for dtype, threads, (nodes, edges, kinds) in itertools.product(
        (torch.int32, torch.int64), (1, 4), shapes
    ):
        torch.set_num_threads(threads)
        graph = RelationalGraph.from_edges(
            torch.randint(nodes, (edges,), generator=generator),
            torch.randint(nodes, (edges,), generator=generator),
            torch.randint(kinds, (edges,), generator=generator),
            num_nodes=nodes,
            num_relations=kinds,
            index_dtype=dtype,
        )
        relation = plain_indexes.sort_relations(graph.relation, graph.source, graph.target, kinds)
        _require_equal(graph.by_relation(), relation)
        rows = plain_indexes.sort_rows(
            relation.targets, relation.sources, relation.edges, relation.pointers, nodes
        )
        _require_equal(graph.by_target(), rows)
        pairs = plain_indexes.find_pairs(
            rows.pointers, rows.relations, rows.edges, relation.pointers
        )
        _require_equal(graph.pairs("target"), pairs)
        graph.pairs("source")
        for value in (-1, nodes, -(2**31), 2**31 - 1):
            values = graph.source.clone()
            if edges:
                values[edges // 2] = value
            found = index_kernels.find_outside(values, nodes)
            assert found == (edges // 2 if edges else None)


def run_readers() -> None:
    """Every reader over good files and damaged ones."""
    chance = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for number in range(60):
                place = write_good(kind, Path(folder) / f"{kind}-{number}")
                if number:
                    damage_bytes(place, chance)
                with contextlib.suppress(ShorthaulError, OSError, MemoryError):
                    read_hostile(kind, place)


def run_rows() -> None:
    """Gathers, sums, products and writes of rows, with ids in range and out of it."""
    generator = torch.Generator().manual_seed(2)
    for dtype, width in itertools.product(
        (torch.float32, torch.float64, torch.bfloat16, torch.float16), (1, 3, 8, 33, 130)
    ):
        values = torch.randn(57, width, generator=generator).to(dtype)
        rows = StoredRows(values, dtype)
        for count, id_dtype in itertools.product((0, 1, 5, 700), (torch.int32, torch.int64)):
            ids = torch.randint(-57, 57, (count,), generator=generator).to(id_dtype)
            assert torch.equal(host_kernels.gather(rows, ids), values[ids.long()])
            pointers = torch.tensor([0, 0, count // 2, count, count])
            weight = torch.randn(7, width, generator=generator).to(dtype)
            for op in ("sum", "mean", "max"):
                host_kernels.gather_reduce(rows, pointers, ids, op)
            host_kernels.gather_linear(rows, ids, weight)
            written = StoredRows(values.clone(), dtype)
            host_kernels.scatter(written, ids, values[ids.long()])
            assert torch.equal(written.values, values)
            if count:
                for wrong in (57, -58, 2**31 - 1, -(2**31)):
                    ids[count // 2] = wrong
                    for use in (
                        lambda: host_kernels.gather(rows, ids),  # noqa: B023
                        lambda: host_kernels.gather_reduce(rows, pointers, ids, "sum"),  # noqa: B023
                        lambda: host_kernels.gather_linear(rows, ids, weight),  # noqa: B023
                        lambda: host_kernels.scatter(written, ids, values[:1].expand(count, -1)),  # noqa: B023
                    ):
                        with _expecting(RowIndexError):
                            use()
    large = StoredRows(torch.randn(4096, 1024, generator=generator), torch.float32)
    ids = torch.randint(4096, (6000,), generator=generator)
    assert torch.equal(host_kernels.gather(large, ids), plain_rows.gather(large, ids))
    quantized = torch.randint(-128, 127, (40, 19), generator=generator).to(torch.int8)
    scales = torch.rand(40, generator=generator)
    rows = StoredRows(quantized, torch.float32, scales)
    ids = torch.randint(40, (91,), generator=generator)
    torch.testing.assert_close(host_kernels.gather(rows, ids), plain_rows.gather(rows, ids))


def run_relational() -> None:
    """A layer with attention, forward and backward, on repeated edges and nodes without any."""
    import shorthaul as sh

    graph = random_graph(50, 700, 3, dtype=torch.int32)
    torch.manual_seed(0)
    for layer in (sh.relational.RGATConv(5, 7, 3), sh.relational.RGCNConv(5, 7, 3)):
        x = torch.randn(50, 5, requires_grad=True)
        layer(x, graph).square().sum().backward()
        assert x.grad is not None
        assert bool(torch.isfinite(x.grad).all())


def run_ring() -> None:
    """Threads that ask, wait, cancel and write at one time, and an engine closed under them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        content = torch.arange(2**18, dtype=torch.int32).view(torch.uint8)
        path.write_bytes(content.numpy().tobytes())
        for _ in range(3):
            _use_ring(UringEngine(depth=8, in_flight_bytes=2**19), path, content)


def _use_ring(engine: UringEngine, path: Path, content: torch.Tensor) -> None:
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        file = open_file(path, "read")
        try:
            for _ in range(40):
                start = chance.randrange(0, len(content) - 70_000)
                out = torch.zeros(chance.choice((1, 4096, 65_536)), dtype=torch.uint8)
                ticket = engine.read(file, start, out)
                if chance.random() < 0.3:
                    engine.cancel(ticket)
                    with contextlib.suppress(ShorthaulError):
                        ticket.wait()
                else:
                    ticket.wait()
                    assert torch.equal(out, content[start : start + len(out)])
        except BaseException as error:
            failed.append(error)
        finally:
            file.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    file = open_file(path, "read")
    left = [engine.read(file, 0, torch.zeros(65_536, dtype=torch.uint8)) for _ in range(6)]
    engine.close()
    for ticket in left:
        with contextlib.suppress(ShorthaulError):
            ticket.wait()
    file.close()
    if failed:
        raise failed[0]


def _run_text(text: str) -> None:
    kernel = load_kernel(
        CppSource("fault", text, (Function("fault", (NumberArgument("size", "int64"),), "int64"),))
    )
    print(kernel.fault(8))


def run_overflow() -> None:
    """A read past the end."""
    _run_text(
        "#include <vector>\n"
        "int64_t fault(int64_t size) { std::vector<int64_t> each(size); return *(each.data() + size); }"
    )


def run_shift() -> None:
    """A sum that does not fit."""
    _run_text("int64_t fault(int64_t size) { return INT64_MAX - 7 + size; }")


def run_race() -> None:
    """Two threads that count without agreeing."""
    _run_text(
        "#include <thread>\n"
        "int64_t fault(int64_t size) {\n"
        "  int64_t count = 0;\n"
        "  const auto add = [&] { for (int64_t i = 0; i < 1000 * size; ++i) ++*(volatile int64_t*)&count; };\n"
        "  std::thread one(add), other(add);\n"
        "  one.join();\n"
        "  other.join();\n"
        "  return count;\n"
        "}"
    )


def run_shared() -> None:
    """A loop whose threads count without agreeing."""
    _run_text(
        '#include "shorthaul/jit/include/parallel.h"\n'
        "int64_t fault(int64_t size) {\n"
        "  int64_t count = 0;\n"
        "  shorthaul::parallel_for(1000 * size, 1, 4, [&](int64_t begin, int64_t end) {\n"
        "    for (int64_t i = begin; i < end; ++i) ++*(volatile int64_t*)&count;\n"
        "  });\n"
        "  return count;\n"
        "}"
    )


def _with_hubs(dtype: torch.dtype) -> RelationalGraph:
    """300 nodes, two of them with thousands of edges, many of those more than once."""
    generator = torch.Generator().manual_seed(4)
    source, target = torch.randint(300, (2, 9000), generator=generator)
    target[:4000], target[4000:6000] = 0, 299
    source[3000:5000] = 17
    relation = torch.randint(3, (9000,), generator=generator)
    return RelationalGraph.from_edges(source, target, relation, num_nodes=300, index_dtype=dtype)


def _with_data(graph: RelationalGraph) -> RelationalGraph:
    """With times, groups and weights, some of which are zero, tiny or huge."""
    generator = torch.Generator().manual_seed(8)
    nodes, edges = graph.num_nodes, graph.num_edges
    weight = torch.rand(edges, generator=generator, dtype=torch.float64)
    weight[::5], weight[1::50], weight[2::70] = 0.0, 1e-300, 1e300
    return graph.with_data(
        nodes={
            "time": torch.randint(60, (nodes,), generator=generator),
            "group": torch.arange(nodes) % 4,
            "weight_of_node": torch.rand(nodes, generator=generator),
        },
        edges={
            "weight": weight,
            "age": torch.randint(60, (edges,), generator=generator),
        },
    )


def _require_equal(index: object, columns: tuple[torch.Tensor, ...]) -> None:
    for found, expected in zip(vars(index).values(), columns, strict=True):
        assert torch.equal(found, expected)


@contextlib.contextmanager
def _expecting(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


_TEAM = CppSource(
    "sanitized_team",
    """
    #include <thread>
    #include <vector>
    static thread_local int number = 0, size = 1;
    static void region(void (*body)(void*), void* data, unsigned threads, unsigned) {
      const auto work = [=](int which) {
        number = which;
        size = threads;
        body(data);
        number = 0;
        size = 1;
      };
      std::vector<std::thread> others;
      for (unsigned each = 1; each < threads; ++each) others.emplace_back(work, each);
      work(0);
      for (auto& each : others) each.join();
    }
    static int thread_number() { return number; }
    static int team_size() { return size; }
    int64_t find_team(int64_t which) {
      if (which == 0) return reinterpret_cast<int64_t>(&region);
      return reinterpret_cast<int64_t>(which == 1 ? &thread_number : &team_size);
    }
    """,
    (Function("find_team", (NumberArgument("which", "int64"),), "int64"),),
)


def hold_to_avx2() -> None:
    """Compile every text for a processor without AVX-512."""
    toolchain.FLAGS = tuple(
        "-march=haswell" if each == "-march=native" else each for each in toolchain.FLAGS
    )


def run_in_teams_that_are_seen() -> None:
    """Let kernels start threads that ThreadSanitizer knows: PyTorch's own runtime was built without it."""
    find = load_kernel(_TEAM).find_team
    team = OpenMPRuntime("sanitized_team", *(find(each) for each in range(3)))
    kernel_module.find_openmp = lambda: team


PROGRAMS = (
    "sampling",
    "candidates",
    "negatives",
    "links",
    "indexes",
    "readers",
    "rows",
    "relational",
    "ring",
)
FAULTS = (
    ("overflow", "heap-buffer-overflow"),
    ("shift", "signed integer overflow"),
    ("race", "data race"),
    ("shared", "data race"),
)
_RUN: dict[str, Callable[[], None]] = {
    "sampling": run_sampling,
    "candidates": run_candidates,
    "negatives": run_negatives,
    "links": run_links,
    "indexes": run_indexes,
    "readers": run_readers,
    "rows": run_rows,
    "relational": run_relational,
    "ring": run_ring,
    "overflow": run_overflow,
    "shift": run_shift,
    "race": run_race,
    "shared": run_shared,
}

if __name__ == "__main__":
    if "avx2" in sys.argv[2:]:
        hold_to_avx2()
    if "teams" in sys.argv[2:]:
        run_in_teams_that_are_seen()
    _RUN[sys.argv[1]]()
    print("finished", flush=True)
    os._exit(0)  # what the libraries do at exit is not looked at
