"""One OpenMP runtime, PyTorch's thread count, and forked children that do not hang."""

import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from shorthaul import fallbacks
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
    load_kernel,
)
from shorthaul.jit.runtime import (
    alone_after_fork,
    find_openmp,
    kernel_threads,
    stay_alone_after_fork,
)
from tests.jit.sources import TEAM

ROOT = Path(__file__).parent.parent.parent
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def team_sizes(slots: int = 8) -> list[int]:
    """What each thread of the kernel's team saw; 0 for threads that were not there."""
    sizes = torch.zeros(slots, dtype=torch.int64)
    load_kernel(TEAM).team(sizes)
    return sizes.tolist()


# ---- which runtime


def test_pytorchs_runtime_is_found() -> None:
    openmp = find_openmp()
    assert openmp is not None
    assert "omp" in Path(openmp.path).name
    assert 0 not in (openmp.parallel_region, openmp.thread_number, openmp.team_size)
    assert openmp.path in Path("/proc/self/maps").read_text()


def test_a_pytorch_without_a_runtime_that_fits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(fallbacks, "_taken", {})
    assert find_openmp.__wrapped__() is None
    (told,) = taken_fallbacks()
    assert (told.what, told.instead) == ("kernel threads", "one thread")
    assert "PyTorch's OpenMP was not found" in told.reason


ONE_RUNTIME = """
import torch
from shorthaul.jit import load_kernel
from shorthaul.jit.runtime import find_openmp
from tests.jit.sources import TEAM

torch.set_num_threads(2)
torch.ones(1_000_000).sin()
sizes = torch.zeros(2, dtype=torch.int64)
load_kernel(TEAM).team(sizes)
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
runtimes = {path for path in mapped if "omp" in path.rpartition("/")[2]}
print(sizes.tolist(), runtimes == {find_openmp().path} or runtimes)
"""


def test_a_process_that_runs_kernels_has_one_runtime() -> None:
    # In a process of its own: another package that a test imports may bring its own runtime here.
    shown = subprocess.run(
        [sys.executable, "-c", ONE_RUNTIME], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout == "[2, 2] True\n"


def test_a_kernel_links_no_runtime() -> None:
    content = load_kernel(TEAM).entry.library.read_bytes()
    assert b"libgomp" not in content
    assert b"libomp" not in content


# ---- how many threads


@pytest.mark.usefixtures("set_threads")
@pytest.mark.parametrize("threads", [1, 5, 2, 3])
def test_the_thread_count_of_torch_is_obeyed(threads: int) -> None:
    torch.set_num_threads(threads)
    assert kernel_threads() == threads
    assert team_sizes() == [threads] * threads + [0] * (8 - threads)


@pytest.mark.usefixtures("set_threads")
def test_another_python_thread_has_the_same_count() -> None:
    torch.set_num_threads(3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(team_sizes).result()[:4] == [3, 3, 3, 0]


def test_without_a_runtime_loops_run_on_the_calling_thread() -> None:
    # The same text under another name: an object of its own, whose runtime is then taken away.
    unbound = load_kernel(CppSource("team_unbound", TEAM.text, TEAM.functions))
    ctypes.CDLL(str(unbound.entry.library))["shorthaul_bind_runtime"](None, None, None)
    sizes = torch.zeros(4, dtype=torch.int64)
    unbound.team(sizes)
    assert sizes.tolist() == [1, 0, 0, 0]


# ---- forked children


def in_forked_child(check: Callable[[], bool]) -> int:
    """The exit status of a child of this process that runs `check`; 0 if it is true."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@forks
@pytest.mark.usefixtures("set_threads")
def test_a_forked_child_runs_kernels_on_one_thread() -> None:
    torch.set_num_threads(2)
    assert team_sizes(2) == [2, 2]  # the pool exists, and its threads will not be in the child
    assert in_forked_child(lambda: team_sizes(2) == [1, 0]) == 0
    assert team_sizes(2) == [2, 2]


@forks
@pytest.mark.usefixtures("set_threads")
def test_a_forked_child_says_so_when_more_threads_were_wanted() -> None:
    def is_told() -> bool:
        return kernel_threads() == 1 and any("forked" in each.reason for each in taken_fallbacks())

    torch.set_num_threads(2)
    assert in_forked_child(is_told) == 0
    torch.set_num_threads(1)
    assert in_forked_child(is_told) == 1
    assert not is_told()


@forks
@pytest.mark.usefixtures("set_threads")
def test_operators_of_a_forked_child_stay_on_its_thread_from_the_first_call_on() -> None:
    @alone_after_fork
    def sort() -> torch.Tensor:
        return torch.ones(1 << 17).sort().values

    def is_alone() -> bool:
        before, sizes = torch.get_num_threads(), team_sizes(1)
        weight = torch.ones(300, 300, requires_grad=True)
        (weight @ weight).sum().backward()  # no call of ours is under way
        return before == 2 and sizes == [1] and torch.get_num_threads() == 1

    def is_alone_in_a_child_of_its_own() -> bool:
        is_sorted = bool(sort().all())
        return is_sorted and torch.get_num_threads() == 1 and in_forked_child(is_sorted_again) == 0

    def is_sorted_again() -> bool:
        torch.set_num_threads(2)
        return bool(sort().all()) and torch.get_num_threads() == 1

    def obeys_what_is_set_after() -> bool:
        sort()
        torch.set_num_threads(2)
        stay_alone_after_fork()
        return torch.get_num_threads() == 2 and kernel_threads() == 1

    torch.set_num_threads(2)
    sort()  # by both threads
    for check in (is_alone, is_alone_in_a_child_of_its_own, obeys_what_is_set_after):
        assert in_forked_child(check) == 0, check.__name__
    assert torch.get_num_threads() == 2


@forks
def test_graphs_that_were_compiled_before_a_fork_serve_after_it() -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        stay_alone_after_fork()
        return x + 1

    counter = CompileCounter()
    compiled = torch.compile(add, fullgraph=True, backend=counter)

    def is_served() -> bool:
        return compiled(torch.ones(3)).tolist() == [2.0] * 3 and counter.frame_count == 1

    assert is_served()
    assert in_forked_child(is_served) == 0


# ---- parallel.h

COVER = CppSource(
    "cover",
    '#include "shorthaul/jit/include/parallel.h"\n'
    "// visits[i]: how often index i was visited; edges: how many chunks, then begin and end of each.\n"
    "void cover(int32_t* visits, int64_t* edges, int64_t count, int64_t grain, int64_t threads,\n"
    "           int64_t, int64_t) {\n"
    "  shorthaul::parallel_for(count, grain, threads, [&](int64_t begin, int64_t end) {\n"
    "    for (int64_t i = begin; i < end; ++i) __atomic_fetch_add(&visits[i], 1, __ATOMIC_RELAXED);\n"
    "    const int64_t chunk = __atomic_fetch_add(&edges[0], 1, __ATOMIC_RELAXED);\n"
    "    edges[1 + 2 * chunk] = begin;\n"
    "    edges[2 + 2 * chunk] = end;\n"
    "  });\n"
    "}",
    (
        Function(
            "cover",
            (
                TensorArgument("visits", torch.int32, ("slots",), is_written=True),
                TensorArgument("edges", torch.int64, ("edge_slots",), is_written=True),
                NumberArgument("count", "int64"),
                NumberArgument("grain", "int64"),
                NumberArgument("threads", "int64"),
                DimensionArgument("slots"),
                DimensionArgument("edge_slots"),
            ),
        ),
    ),
)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(
    count=st.integers(-3, 300),
    grain=st.one_of(st.integers(1, 70), st.sampled_from([0, -1, 2**62, 2**63 - 1])),
    threads=st.integers(-1, 7),
)
def test_parallel_for_visits_every_index_once_in_chunks_at_grains(
    count: int, grain: int, threads: int
) -> None:
    visits = torch.zeros(max(count, 0) + 5, dtype=torch.int32)
    edges = torch.zeros(1 + 2 * 8, dtype=torch.int64)
    load_kernel(COVER).cover(visits, edges, count, grain, threads)
    assert visits.tolist() == [1] * max(count, 0) + [0] * 5
    chunks = sorted(edges[1 : 1 + 2 * int(edges[0])].reshape(-1, 2).tolist())
    whole_grains = max(grain, 1)
    assert len(chunks) <= max(1, min(threads, -(-max(count, 0) // whole_grains)))
    assert all(begin < end for begin, end in chunks)
    assert all(begin % whole_grains == 0 for begin, _ in chunks)
    assert all(one[1] == following[0] for one, following in itertools.pairwise(chunks))


@hypothesis.settings(deadline=None)
@hypothesis.given(count=st.integers(64, 300), threads=st.integers(2, 7))
def test_parallel_for_shares_the_work_evenly(count: int, threads: int) -> None:
    edges = torch.zeros(1 + 2 * 8, dtype=torch.int64)
    load_kernel(COVER).cover(torch.zeros(count, dtype=torch.int32), edges, count, 1, threads)
    assert edges[0] == threads
    sizes = (edges[2::2] - edges[1::2])[:threads]
    assert sizes.max() - sizes.min() <= 1
