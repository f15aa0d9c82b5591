"""Jobs of the compile pool: bounded, in order, and gone with their threads."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shorthaul.errors import KernelPendingError
from shorthaul.jit.compiling.loading import compiling, load_when_ready
from shorthaul.jit.compiling.pool import NICENESS, CompilePool, Job
from shorthaul.jit.kernel_cache import KernelCache, make_private_directory
from shorthaul.jit.toolchain import find_toolchain
from shorthaul.settings import settings
from tests.jit.gated_compiler import closed_gate, write_gated_compiler
from tests.jit.sources import answer


class Gate:
    """Work that begins, tells so, and goes on when it is let."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        self.may_end.wait()


@pytest.fixture
def pool() -> Iterator[CompilePool]:
    made = CompilePool(lambda: 2)
    yield made
    made.close()


def test_at_most_so_many_jobs_run_at_once(pool: CompilePool) -> None:
    gates = [Gate() for _ in range(3)]
    jobs = [pool.submit(n, f"job {n}", each, is_urgent=False) for n, each in enumerate(gates)]
    gates[0].has_begun.wait()
    gates[1].has_begun.wait()
    assert not gates[2].has_begun.is_set()
    assert pool.under_way() == tuple(jobs)
    for each in gates:
        each.may_end.set()
    for job in jobs:
        job.wait()
        assert job.is_done
        assert job.error is None


def test_who_asks_twice_gets_the_same_job_until_it_has_ended(pool: CompilePool) -> None:
    gate = Gate()
    job = pool.submit("key", "job", gate, is_urgent=False)
    assert pool.submit("key", "job", gate, is_urgent=True) is job
    epoch = pool.epoch
    workers = tuple(pool._workers)
    gate.may_end.set()
    job.wait()
    for each in workers:
        each.join()
    assert pool.epoch is not epoch
    assert pool.is_idle()
    again = pool.submit("key", "job", lambda: None, is_urgent=False)
    assert again is not job
    again.wait()


def test_who_waited_finds_the_news(monkeypatch: pytest.MonkeyPatch, pool: CompilePool) -> None:
    """Else it asks again for what is there, and finds a pool that is still at work."""
    seen, end = [], Job.end

    def look(job: Job) -> None:
        seen.append((pool.is_idle(), pool.epoch is not epoch))
        end(job)

    monkeypatch.setattr(Job, "end", look)
    epoch = pool.epoch
    pool.submit("key", "job", lambda: None, is_urgent=False).wait()
    assert seen == [(True, True)]


def test_no_thread_waits_for_work(pool: CompilePool) -> None:
    job = pool.submit("key", "job", lambda: None, is_urgent=False)
    workers = tuple(pool._workers)
    job.wait()
    for each in workers:
        each.join()
    assert not pool._workers


def test_an_error_is_kept(pool: CompilePool) -> None:
    def fail() -> None:
        raise KeyError("lost")

    job = pool.submit("key", "job", fail, is_urgent=False)
    job.wait()
    assert isinstance(job.error, KeyError)


def test_urgent_jobs_go_first_and_at_full_priority() -> None:
    pool, gate, order = CompilePool(lambda: 1), Gate(), []
    priority = {}

    def work(name: str) -> None:
        order.append(name)
        priority[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = os.getpriority(os.PRIO_PROCESS, 0)
    pool.submit("gate", "gate", gate, is_urgent=True)
    jobs = [
        pool.submit("first", "first", lambda: work("first"), is_urgent=False),
        pool.submit("second", "second", lambda: work("second"), is_urgent=False),
        pool.submit("third", "third", lambda: work("third"), is_urgent=True),
    ]
    pool.submit("second", "second", lambda: work("second"), is_urgent=True)
    gate.may_end.set()
    for job in jobs:
        job.wait()
    assert order == ["second", "third", "first"]
    nice = min(19, own + NICENESS)
    assert priority == {"second": own, "third": own, "first": nice}
    for each in tuple(pool._workers):
        each.join()
    pool.submit("later", "later", lambda: work("later"), is_urgent=False).wait()
    assert priority["later"] == nice
    pool.close()


def test_what_somebody_waits_for_does_not_wait_for_nice_ones() -> None:
    """Nobody can take back that a thread is nice: there is one more for what is urgent, which ends or becomes nice."""
    pool, gate = CompilePool(lambda: 1), Gate()
    priority = {}

    def work(name: str) -> None:
        priority[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = os.getpriority(os.PRIO_PROCESS, 0)
    pool.submit("gate", "gate", gate, is_urgent=False)
    gate.has_begun.wait()
    jobs = [
        pool.submit(name, name, functools.partial(work, name), is_urgent=False)
        for name in ("first", "second")
    ]
    pool.submit("second", "second", work, is_urgent=True).wait()
    assert priority == {"second": own}
    gate.may_end.set()
    for job in jobs:
        job.wait()
    assert priority == {"second": own, "first": min(19, own + NICENESS)}
    for each in tuple(pool._workers):
        each.join()
    assert not pool._workers


def test_where_no_thread_can_be_started_everybody_asks_again(
    pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    epoch = pool.epoch
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        job = pool.submit("key", "job", lambda: None, is_urgent=False)
    assert job.is_done
    assert isinstance(job.error, RuntimeError)
    assert pool.is_idle()
    assert pool.epoch is not epoch
    again = pool.submit("key", "job", lambda: None, is_urgent=False)
    again.wait()
    assert again.error is None


def test_a_closed_pool_takes_nothing() -> None:
    pool, gate = CompilePool(lambda: 1), Gate()
    running = pool.submit("running", "running", gate, is_urgent=False)
    queued = pool.submit("queued", "queued", gate, is_urgent=False)
    gate.may_end.set()
    pool.close()
    assert running.is_done
    assert queued.is_done
    late = pool.submit("late", "late", gate, is_urgent=False)
    assert late.is_done
    assert late.error is not None


def test_a_forked_child_knows_of_no_job(pool: CompilePool) -> None:
    os.register_at_fork(after_in_child=pool.start_afresh)
    gate = Gate()
    pool.submit("key", "job", gate, is_urgent=False)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            job = pool.submit("key", "job", lambda: None, is_urgent=False)
            job.wait()
            status = 0 if job.error is None else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    gate.may_end.set()
    assert os.waitstatus_to_exitcode(status) == 0


_EXITS = """\
import sys
from shorthaul.errors import KernelPendingError
from shorthaul.jit.compiling.loading import load_when_ready
from tests.jit.sources import answer
for number in range(3):
    try:
        load_when_ready(answer(number), "nothing")
    except KernelPendingError as error:
        print(error)
sys.stdin.readline()
"""


def run_exiting(directory: Path, compiler: Path) -> subprocess.CompletedProcess[str]:
    """A process that asks for three kernels and exits."""
    return subprocess.run(
        [sys.executable, "-c", _EXITS],
        env=os.environ
        | {
            "CXX": str(compiler),
            "SHORTHAUL_CACHE": str(directory / "cache"),
            "SHORTHAUL_COMPILERS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        input="\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_a_process_exits_while_another_one_compiles_what_it_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = write_gated_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    cache = KernelCache(tmp_path / "cache")
    make_private_directory(cache.directory)
    with contextlib.ExitStack() as held:
        for number in range(3):
            held.enter_context(cache._locked(answer(number).digest(find_toolchain().fingerprint)))
        running = run_exiting(tmp_path, compiler)
    assert running.stdout.count("still being compiled") == 3
    assert running.stderr == ""
    assert not (tmp_path / "started").exists()


def test_a_process_that_exits_stops_its_compilers(tmp_path: Path) -> None:
    compiler = write_gated_compiler(tmp_path)
    with closed_gate(tmp_path):
        running = run_exiting(tmp_path, compiler)
        started = (
            (tmp_path / "started").read_text().split() if (tmp_path / "started").exists() else []
        )
        alive = [each for each in started if Path(f"/proc/{each}").exists()]
    assert running.stdout.count("still being compiled") == 3
    assert running.stderr == ""
    assert len(started) <= 1
    assert alive == []


def _ask_and_end(directory: Path) -> None:
    with compiling("background"), contextlib.suppress(KernelPendingError):
        load_when_ready(answer(0), "nothing")
    while not (directory / "started").exists():
        threading.Event().wait(0.005)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_that_ends_stops_its_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(write_gated_compiler(tmp_path)))
    with closed_gate(tmp_path), settings.override(cache_directory=tmp_path / "cache"):
        worker = multiprocessing.get_context("fork").Process(target=_ask_and_end, args=(tmp_path,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        (started,) = (tmp_path / "started").read_text().split()
        assert not Path(f"/proc/{started}").exists()
