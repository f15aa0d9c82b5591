"""Copies wait for what computes, buffers for their copies, and users for what comes back."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shorthaul as sh
from shorthaul.offload.device.copies import DeviceCopier
from shorthaul.storage import BufferPool, MemoryEngine, Ticket, open_file
from tests.offload.recorded_streams import RecordedStreams

CPU = torch.device("cpu")
LENGTH = 8192


def _activation(value: int) -> torch.Tensor:
    return torch.full((LENGTH,), value, dtype=torch.uint8)


def test_the_way_out_in_order() -> None:
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    source = _activation(1)
    copier.copy_out(source, torch.empty_like(source))
    assert streams.log == [
        "compute: record event 1",
        "side 1: wait for event 1",
        "side 1: copy",
        "side 1: hold",
        "side 1: record event 2",
    ]
    assert streams.held == [(source.data_ptr(), "side 1")]
    copier.close()


def test_the_way_back_in_order() -> None:
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    back = copier.copy_back(_activation(1), CPU)
    assert streams.log == ["side 1: allocate", "side 1: copy", "side 1: record event 1"]
    tensor = back.use()
    assert streams.log[3:] == ["compute: wait for event 1", "compute: hold"]
    assert streams.held == [(tensor.data_ptr(), "compute")]
    back.use()  # the graph is kept: another stream may compute with it
    assert streams.log[5:] == ["compute: wait for event 1", "compute: hold"]
    copier.close()


def test_nothing_is_copied_before_it_is_computed() -> None:
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    source, target = _activation(0), _activation(9)
    arrived: list[bool] = []
    streams.compute_next(lambda: source.fill_(7))
    copy = copier.copy_out(source, target, lambda: arrived.append(True))
    for side in streams.streams[1:]:
        side.run()
    copier.settle()
    assert arrived == []
    assert not copy.has_arrived
    assert target[0] == 9
    streams.run()
    copier.settle()
    copier.settle()
    assert arrived == [True]
    assert copy.has_arrived
    assert target[0] == 7


def test_what_computes_next_sees_what_came_back() -> None:
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    seen: list[int] = []
    tensor = copier.copy_back(_activation(5), CPU).use()
    streams.compute_next(lambda: seen.append(int(tensor[0])))
    streams.compute.run()
    assert seen == []
    streams.run()
    assert seen == [5]
    copier.settle()
    assert (copier.leaving_bytes, copier.returning_bytes) == (0, 0)


def test_a_buffer_is_not_reused_before_its_copy_is_over() -> None:
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    with BufferPool(LENGTH) as pool:  # room for one
        buffer = pool.take(LENGTH)
        copier.copy_out(_activation(3), buffer.tensor(torch.uint8, (LENGTH,)))
        buffer.release()
        del buffer
        copier.settle()
        assert pool.in_use_bytes == LENGTH
        streams.run()
        assert pool.in_use_bytes == LENGTH, "nobody has looked yet"
        copier.settle()
        assert pool.in_use_bytes == 0
        source = pool.take(LENGTH)
        copier.copy_back(source.tensor(torch.uint8, (LENGTH,)), CPU)
        source.release()
        assert pool.in_use_bytes == LENGTH
        streams.run()
        copier.settle()
        gc.collect()
        assert pool.in_use_bytes == 0


def test_waiting_hands_on_what_left_before() -> None:
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    arrived: list[int] = []
    copies = [
        copier.copy_out(_activation(each), _activation(0), lambda each=each: arrived.append(each))
        for each in range(4)
    ]
    assert copier.leaving_bytes == 4 * LENGTH
    copier.wait(copies[2])
    assert arrived == [0, 1, 2]
    copier.wait(copies[2])
    copier.close()
    copier.close()
    assert arrived == [0, 1, 2, 3]


def test_a_forgotten_copier_waits_before_it_lets_buffers_go() -> None:
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    target = _activation(0)
    alive = weakref.ref(target)
    copier.copy_out(_activation(1), target)
    del target
    gc.collect()
    assert alive() is not None
    del copier
    gc.collect()
    assert streams.log[-1] == "host: wait for event 2"
    assert alive() is None or not any(each.waiting for each in streams.streams)


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="8,192 bytes, but its target has 10"):
        DeviceCopier(RecordedStreams()).copy_out(_activation(0), torch.empty(10, dtype=torch.uint8))


def test_bytes_are_counted() -> None:
    copier = DeviceCopier(RecordedStreams())
    with sh.meter() as m:
        copier.copy_out(_activation(1), _activation(0))
        copier.copy_back(_activation(1), CPU)
    assert m.bytes_between(why="activations") == 2 * LENGTH
    copier.close()


@settings(max_examples=25, deadline=None)
@given(order=st.lists(st.sampled_from(["save", "get on", "settle", "restore"]), max_size=40))
def test_every_byte_comes_back_through_the_disk(order: list[str], tmp_path_factory) -> None:
    """Saved, copied, written, read, copied back, whatever gets on when; buffers are few."""
    streams = RecordedStreams()
    copier = DeviceCopier(streams)
    directory = tmp_path_factory.mktemp("spool")
    with (
        MemoryEngine() as engine,
        open_file(directory, "scratch", direct=False) as file,
        BufferPool(64 * LENGTH) as pool,
    ):
        writes: dict[int, Ticket] = {}

        def save(number: int) -> None:
            source = torch.zeros(LENGTH, dtype=torch.uint8)
            streams.compute_next(lambda: source.fill_(number + 1))
            buffer = pool.take(LENGTH, block=False)

            def write() -> None:
                writes[number] = engine.write(file, number * LENGTH, buffer)

            copier.copy_out(source, buffer.tensor(torch.uint8, (LENGTH,)), write)
            streams.compute_next(lambda: None)

        def restore(number: int) -> None:
            writes[number].wait()
            with pool.take(LENGTH, block=False) as buffer:
                engine.read(file, number * LENGTH, buffer).wait()
                back = copier.copy_back(buffer.tensor(torch.uint8, (LENGTH,)), CPU)
            tensor = back.use()
            streams.compute_next(lambda: seen.append((number, tensor.unique().tolist())))

        saved, seen, asked = 0, list[tuple[int, list[int]]](), 0
        for each in order:
            if each == "save" and saved < 20:
                save(saved)
                saved += 1
            elif each == "get on":
                streams.run()
            elif each == "settle":
                copier.settle()
            elif each == "restore" and writes:
                restore(max(writes))
                asked += 1
        while copier.wait_for_oldest():
            pass
        assert sorted(writes) == list(range(saved))
        for number in reversed(range(saved)):
            restore(number)
        streams.run()
        copier.settle()
        assert len(seen) == saved + asked
        assert all(values == [number + 1] for number, values in seen)
        for ticket in writes.values():
            ticket.wait()
        del seen[:]
        gc.collect()
        assert (copier.leaving_bytes, copier.returning_bytes) == (0, 0)
