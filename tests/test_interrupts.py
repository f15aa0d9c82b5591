from __future__ import annotations

import ctypes
import os
import signal
import threading

import pytest

from shorthaul import interrupts
from shorthaul.interrupts import PatientLock, deferred_interrupts, obey_interrupts, when_gone


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before
    assert (interrupts._depth, interrupts._arrived) == (0, [])


def test_an_interrupt_waits_for_the_end_of_the_outermost_block():
    steps = []

    def work():
        with deferred_interrupts:
            with deferred_interrupts:
                interrupt()
                steps.append("inside")
            steps.append("between")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["inside", "between"]


def test_without_an_interrupt_nothing_happens():
    with deferred_interrupts:
        pass


def test_an_interrupt_may_be_obeyed_earlier_and_the_second_one_waits():
    steps = []

    def work():
        with deferred_interrupts:
            interrupt()
            try:
                obey_interrupts()
                steps.append("never")
            finally:
                interrupt()
                steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["cleaned up"]


def test_an_error_is_named_beside_the_interrupt_that_came_with_it():
    def work():
        with deferred_interrupts:
            interrupt()
            raise ValueError("the error")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_handlers_of_users_run_and_may_be_changed_inside():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with deferred_interrupts:
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM]

        def other(number, frame):
            heard.append("other")

        with deferred_interrupts:
            signal.signal(signal.SIGTERM, other)
        assert signal.getsignal(signal.SIGTERM) is other
    finally:
        signal.signal(signal.SIGTERM, before)


def test_two_handlers_that_raise_are_both_heard():
    def end(number, frame):
        raise SystemExit

    def work():
        with deferred_interrupts:
            signal.raise_signal(signal.SIGTERM)
            interrupt()

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            work()
        assert signal.getsignal(signal.SIGTERM) is end
        with pytest.raises(KeyboardInterrupt), deferred_interrupts:
            pass
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupts:
            interrupt()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_nothing():
    def work():
        with deferred_interrupts:
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_lock_is_let_go_before_an_interrupt_is_obeyed(is_reentrant):
    lock = PatientLock(is_reentrant=is_reentrant)
    with pytest.raises(KeyboardInterrupt), lock:
        interrupt()
    assert lock.acquire(0.0)
    lock.release()


def test_waiting_for_a_lock_ends_with_an_interrupt_or_in_time():
    lock, is_held, may_end = PatientLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            may_end.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)
    assert not lock.acquire(0.0)
    assert not lock.acquire(0.01)
    timer = threading.Timer(
        0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
    )
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    may_end.set()
    thread.join()
    with lock:
        pass


def test_a_lock_may_be_taken_before_an_interrupt_is_obeyed():
    lock = PatientLock()
    is_held = threading.Event()

    def hold():
        with lock:
            is_held.set()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=hold)
    with deferred_interrupts:
        thread.start()
        is_held.wait(10)
        lock.acquire_first()
        thread.join()
        assert not lock.acquire(0.0)
        lock.release()
        assert lock.acquire(0.0)
        lock.release()
        with pytest.raises(KeyboardInterrupt):
            obey_interrupts()


def test_a_child_forked_by_a_thread_inside_hears_its_own_interrupts():
    def fork():
        child = os.fork()
        if child == 0:
            try:
                is_free = signal.getsignal(signal.SIGINT) is signal.default_int_handler
                with deferred_interrupts:
                    is_deferred = signal.getsignal(signal.SIGINT) is interrupts._note
                os._exit(0 if is_free and is_deferred else 1)
            finally:
                os._exit(2)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    codes: list[int] = []
    with deferred_interrupts:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    assert codes == [0]


class Owner:
    """Something that can be referred to weakly."""


def test_what_is_due_happens_when_the_last_reference_dies():
    found: list[int] = []
    owner = other = Owner()
    when_gone(owner, found.append, 7)
    del owner
    assert found == []
    del other
    assert found == [7]


def test_what_was_cancelled_is_not_due():
    found: list[int] = []
    owner = Owner()
    ending = when_gone(owner, found.append, 7)
    ending.cancel()
    ending.cancel()
    del owner
    assert found == []


def test_several_are_due_and_the_dead_are_forgotten():
    found: list[int] = []
    for number in range(1000):
        when_gone(Owner(), found.append, number)
    assert found == list(range(1000))
    owner = Owner()
    when_gone(owner, found.append, 1)
    when_gone(owner, found.append, 2)
    del owner
    assert sorted(found[-2:]) == [1, 2]
    assert len(interrupts._endings) < 500


def test_no_signal_is_lost_while_an_object_dies():
    arrive = ctypes.CDLL(None)["raise"]  # those of Python look for signals themselves
    caught = []
    for _ in range(20):
        owner = Owner()
        when_gone(owner, arrive, signal.SIGINT)
        try:
            del owner
            for _ in range(3):
                pass
        except KeyboardInterrupt:
            caught.append(True)
    assert len(caught) == 20
