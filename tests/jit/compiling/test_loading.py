"""Kernels asked for, had when they are ready, waited for, and failing."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from pathlib import Path

import pytest
import torch

from shorthaul.errors import CompileError, KernelPendingError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.jit import CppSource, Function, Kernel, kernel
from shorthaul.jit.compiling.loading import (
    MANY_KERNELS,
    compiling,
    forget_pending,
    gather_pending,
    is_waited_for,
    kept_when_ready,
    load_kernels,
    load_plans,
    load_when_ready,
    run_compiled,
    wait_for_compilers,
)
from shorthaul.jit.compiling.pool import compilers
from shorthaul.meter import meter
from shorthaul.settings import settings
from tests.jit.gated_compiler import closed_gate, write_gated_compiler
from tests.jit.sources import answer

BROKEN = CppSource("broken", "int64_t broken() { return;", (Function("broken", (), "int64"),))


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CXX", str(write_gated_compiler(tmp_path)))
    return tmp_path


def test_the_setting_decides_unless_a_block_does() -> None:
    assert is_waited_for()
    with settings.override(compiling="background"):
        assert not is_waited_for()
        assert is_waited_for(by_default=True)
        with compiling("wait"):
            assert is_waited_for()
    with compiling("background"):
        assert not is_waited_for(by_default=True)


def test_deterministic_programs_wait() -> None:
    with settings.override(compiling="background"):
        torch.use_deterministic_algorithms(True)
        try:
            assert is_waited_for()
            with compiling("background"):
                assert not is_waited_for()
        finally:
            torch.use_deterministic_algorithms(False)
        assert not is_waited_for()


def test_a_kernel_is_pending_until_it_is_compiled(gate: Path) -> None:
    source = answer(1001)
    with settings.override(compiling="background"):
        with closed_gate(gate):
            for _ in range(2):
                with pytest.raises(KernelPendingError, match="answer is still being compiled"):
                    load_when_ready(source, "nothing")
            (job,) = compilers.under_way()
            assert job.name == "answer"
        wait_for_compilers()
        assert load_when_ready(source, "nothing").answer() == 1001
    assert len((gate / "started").read_text().split()) == 1


def test_who_waits_for_a_kernel_under_way_gets_it(gate: Path) -> None:
    source = answer(1002)
    with closed_gate(gate), compiling("background"), pytest.raises(KernelPendingError):
        load_when_ready(source, "nothing")
    with compiling("wait"):
        assert load_when_ready(source, "nothing").answer() == 1002
    wait_for_compilers()
    assert len((gate / "started").read_text().split()) == 1


def test_a_kernel_in_the_cache_is_had_at_once(gate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = answer(1003)
    with compiling("wait"):
        load_when_ready(source, "nothing")
    monkeypatch.setattr(kernel, "_loaded", {})  # as in a second process
    with compiling("background"), meter() as counted:
        assert load_when_ready(source, "nothing").answer() == 1003
    assert not counted.compiles
    assert len((gate / "started").read_text().split()) == 1


def test_plans_are_compiled_together(gate: Path) -> None:
    sources = [answer(number) for number in (1004, 1005, 1006)]
    plans = [functools.partial(load_when_ready, each, "nothing") for each in sources]
    with closed_gate(gate):
        assert gather_pending(plans)
        assert len(compilers.under_way()) == 3
    load_plans(plans)
    assert not gather_pending(plans)
    seen = []
    wait_for_compilers(lambda done, of: seen.append((done, of)))
    assert seen[-1][0] == seen[-1][1]
    assert [each.answer() for each in load_kernels(sources)] == [1004, 1005, 1006]


def test_who_waits_for_some_does_not_wait_for_others(gate: Path) -> None:
    sources = [answer(number) for number in (1010, 1011)]
    other = threading.Event()
    job = compilers.submit("other", "other", other.wait, is_urgent=True)
    with settings.override(compilers=2):
        assert [each.answer() for each in load_kernels(sources)] == [1010, 1011]
    assert not job.is_done
    other.set()
    wait_for_compilers()


def test_a_kernel_that_does_not_compile_is_noted_once_and_not_tried_again() -> None:
    with compiling("background"):
        with pytest.raises(KernelPendingError, match="still being compiled"):
            load_when_ready(BROKEN, "the other way")
        wait_for_compilers()
        for _ in range(2):
            with pytest.raises(KernelPendingError, match="did not compile"):
                load_when_ready(BROKEN, "the other way")
        assert compilers.is_idle()
    (noted,) = [each for each in taken_fallbacks() if each.what == "kernel broken"]
    assert noted.instead == "the other way"
    assert "error:" in noted.reason
    with compiling("wait"), pytest.raises(CompileError):
        load_when_ready(BROKEN, "the other way")
    with pytest.raises(CompileError):
        load_plans([functools.partial(load_when_ready, BROKEN, "the other way")])


def test_a_forked_child_asks_for_its_own(gate: Path) -> None:
    source = answer(1007)
    with compiling("background"):
        with closed_gate(gate):
            with pytest.raises(KernelPendingError):
                load_when_ready(source, "nothing")
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    with pytest.raises(KernelPendingError):
                        load_when_ready(source, "nothing")
                    status = 0 if len(compilers.under_way()) == 1 else 2
                finally:
                    os._exit(status)
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        wait_for_compilers()
        assert load_when_ready(source, "nothing").answer() == 1007


def test_a_pending_kernel_is_not_emitted_again_until_one_has_come(gate: Path) -> None:
    emitted = []

    @kept_when_ready
    def load(number: int) -> Kernel:
        emitted.append(number)
        return load_when_ready(answer(number), "nothing")

    with compiling("background"):
        with closed_gate(gate):
            for _ in range(3):
                with pytest.raises(KernelPendingError, match="answer is still being compiled"):
                    load(3001)
            assert emitted == [3001]
            # Who is going to wait asks again, so that it goes before the others.
            assert gather_pending([functools.partial(load, 3001)], is_urgent=True)
            assert emitted == [3001] * 2
        wait_for_compilers()
        assert load(3001).answer() == 3001
        assert load(3001).answer() == 3001
    assert emitted == [3001] * 3


def test_a_kernel_that_failed_is_not_emitted_again() -> None:
    emitted = []

    @kept_when_ready
    def load() -> Kernel:
        emitted.append(1)
        return load_when_ready(BROKEN, "nothing")

    with compiling("background"):
        with contextlib.suppress(KernelPendingError):
            load()
        wait_for_compilers()
        emitted.clear()
        for _ in range(3):
            with pytest.raises(KernelPendingError, match="broken did not compile"):
                load()
        assert len(emitted) == 1
        forget_pending()
        with pytest.raises(KernelPendingError, match="broken did not compile"):
            load()
        assert len(emitted) == 2


def test_plans_that_are_gathered_while_somebody_is_going_to_wait_are_urgent(
    gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, submit = [], compilers.submit

    def record(*arguments: object, is_urgent: bool) -> object:
        asked.append(is_urgent)
        return submit(*arguments, is_urgent=is_urgent)

    monkeypatch.setattr(compilers, "submit", record)
    plans = [
        functools.partial(load_when_ready, answer(number), "nothing") for number in (3002, 3003)
    ]
    with compiling("background"):
        gather_pending(plans[:1])
    run_compiled(lambda: gather_pending(plans[1:]))
    assert asked == [False, True]
    wait_for_compilers()


def test_headers_are_precompiled_where_many_kernels_wait(gate: Path) -> None:
    sources = [answer(number) for number in range(2000, 2000 + MANY_KERNELS)]
    plans = [functools.partial(load_when_ready, each, "nothing") for each in sources]
    with closed_gate(gate):
        gather_pending(plans[:-1])
        assert "headers" not in {each.name for each in compilers.under_way()}
        gather_pending(plans)
        assert "headers" in {each.name for each in compilers.under_way()}
    wait_for_compilers()
    assert not gather_pending(plans)
