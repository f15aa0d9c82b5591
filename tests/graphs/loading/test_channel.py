import threading

import pytest

from shorthaul.graphs.loading.channel import Channel, ClosedError


def test_items_come_in_order() -> None:
    channel = Channel[int](room=3)
    for number in range(3):
        channel.put(number)
    assert [channel.get() for _ in range(3)] == [0, 1, 2]


def test_putting_waits_for_room() -> None:
    channel = Channel[int](room=2)
    waiting: list[int] = []

    def fill() -> None:
        for number in range(6):
            channel.put(number)
            waiting.append(number)

    thread = threading.Thread(target=fill)
    thread.start()
    got = []
    for _ in range(6):
        got.append(channel.get())
        assert len(waiting) <= len(got) + 2
    thread.join()
    assert got == list(range(6))


@pytest.mark.parametrize("end", ["put", "get"])
def test_closing_wakes_whoever_waits(end: str) -> None:
    channel = Channel[int](room=1)
    if end == "put":
        channel.put(0)
    ended: list[bool] = []

    def wait() -> None:
        try:
            channel.put(1) if end == "put" else channel.get()
        except ClosedError:
            ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    channel.close()
    thread.join(timeout=30)
    assert ended == [True]


def test_a_closed_channel_lets_go_of_its_items() -> None:
    channel = Channel[int](room=1)
    channel.put(1)
    channel.close()
    with pytest.raises(ClosedError):
        channel.get()
