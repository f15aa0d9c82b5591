"""Second-best ways are told once and remembered."""

import logging
import os
import threading

import pytest

from shorthaul import fallbacks
from shorthaul.fallbacks import Fallback, note_fallback, taken_fallbacks


@pytest.fixture(autouse=True)
def _nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallbacks, "_taken", {})


def test_a_fallback_is_logged_once_and_remembered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "shorthaul"):
        for _ in range(3):
            note_fallback("convolution", "plain PyTorch", "no C++ compiler was found")
    assert [record.getMessage() for record in caplog.records] == [
        "convolution: using plain PyTorch, because no C++ compiler was found"
    ]
    assert taken_fallbacks() == (
        Fallback("convolution", "plain PyTorch", "no C++ compiler was found"),
    )


def test_other_reasons_are_other_fallbacks_and_keep_their_order() -> None:
    note_fallback("storage", "threads", "io_uring is switched off")
    note_fallback("storage", "threads", "the file system is too old")
    note_fallback("convolution", "plain PyTorch", "io_uring is switched off")
    assert [(each.what, each.reason) for each in taken_fallbacks()] == [
        ("storage", "io_uring is switched off"),
        ("storage", "the file system is too old"),
        ("convolution", "io_uring is switched off"),
    ]


def test_many_threads_log_one_line(caplog: pytest.LogCaptureFixture) -> None:
    start = threading.Barrier(8)

    def note() -> None:
        start.wait()
        note_fallback("storage", "threads", "io_uring is switched off")

    threads = [threading.Thread(target=note) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(caplog.records) == len(taken_fallbacks()) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_can_note_one_although_another_thread_was_noting_while_it_was_forked() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with fallbacks._lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(len(taken_fallbacks()))
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
