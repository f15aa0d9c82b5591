import threading

import pytest

from shorthaul.graphs.loading.batch_pipeline import BatchPipeline
from shorthaul.meter import meter

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


def make(count: int, draw=lambda n: n, complete=lambda n: n * n, rooms=(2, 2)) -> BatchPipeline:
    return BatchPipeline(count, draw, complete, room_drawn=rooms[0], room_batches=rooms[1])


def test_batches_come_in_order_and_threads_end() -> None:
    assert list(make(20)) == [n * n for n in range(20)]
    assert list(make(0)) == []
    assert threads_left() == []


def test_no_more_is_made_than_there_is_room_for() -> None:
    drawn: list[int] = []
    batches = make(30, draw=lambda n: drawn.append(n) or n, rooms=(3, 2))
    for taken, _ in enumerate(batches, start=1):
        # On their way: 3 drawn, 2 complete, and one in the hands of each thread.
        assert len(drawn) <= taken + 3 + 2 + 2


@pytest.mark.parametrize("stage", ["draw", "complete"])
def test_an_error_comes_out_after_the_batches_before_it(stage: str) -> None:
    def fail(number: int) -> int:
        if number == 4:
            raise OSError("the disk is gone")
        return number

    got = []
    pipeline = make(10, draw=fail) if stage == "draw" else make(10, complete=fail)
    with pytest.raises(OSError, match="the disk is gone"):
        got.extend(pipeline)
    assert len(got) == 4
    assert threads_left() == []


def test_leaving_the_loop_ends_the_threads() -> None:
    for _ in make(1000):
        break
    assert threads_left() == []


def test_an_error_in_the_loop_ends_the_threads() -> None:
    def train() -> None:
        for _ in make(1000):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert threads_left() == []


def test_a_forgotten_iterator_ends_the_threads() -> None:
    iterator = iter(make(1000))
    next(iterator)
    assert threads_left() == ["shorthaul sampling", "shorthaul gathering"]
    del iterator
    assert threads_left() == []


def test_a_pipeline_that_nobody_iterates_ends_too() -> None:
    pipeline = make(1000)
    threads = pipeline._threads
    del pipeline
    for each in threads:
        each.join(timeout=30)
    assert threads_left() == []


def test_closing_twice_is_harmless() -> None:
    pipeline = make(5)
    pipeline.close()
    pipeline.close()


def test_waiting_is_measured() -> None:
    with meter() as measured:
        list(make(5))
    assert "mini-batches" in measured.stall_seconds
