"""What engines share: errors that name the first failure, and memory that is found."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from shorthaul.errors import ShortReadError
from shorthaul.storage import BufferPool, Failure, MemoryEngine, Priority, open_file
from shorthaul.storage.engine import END_OF_FILE, build_error, find_span
from shorthaul.storage.testing.contract import PATIENCE_SECONDS, in_child, paused


def test_priorities_are_in_order() -> None:
    assert list(Priority) == [Priority.DEMAND, Priority.PREFETCH, Priority.WRITE]
    assert [int(each) for each in Priority] == [0, 1, 2]


@pytest.mark.parametrize(
    ("action", "failures", "count", "text"),
    [
        (
            "read",
            [Failure(0, 100, 50, 20, END_OF_FILE)],
            1,
            "read of {path} failed at bytes 100 to 150: ENODATA (No data available).\n"
            "  The file ends early: 20 of 50 bytes were there.",
        ),
        (
            "read",
            [Failure(7, 100, 50, 0, errno.EIO), Failure(3, 400, 10, 0, errno.EIO)],
            1000,
            "read of {path} failed at bytes 400 to 410: EIO (Input/output error).\n"
            "  2 of 1,000 requests failed; the first of them is named.",
        ),
        (
            "write",
            [Failure(0, 0, 8192, 4096, errno.ENOSPC)],
            1,
            "write of {path} failed at bytes 0 to 8,192: ENOSPC (No space left on device).\n"
            "  4,096 of 8,192 bytes were written.\n"
            "  Free some space or use another directory.",
        ),
        (
            "write",
            [Failure(0, 0, 8192, 0, errno.ENOSPC)],
            1,
            "write of {path} failed at bytes 0 to 8,192: ENOSPC (No space left on device).\n"
            "  Free some space or use another directory.",
        ),
    ],
)
def test_the_whole_text_of_an_error(tmp_path: Path, action, failures, count, text) -> None:
    with open_file(tmp_path, "scratch") as file:
        error = build_error(action, file, failures, count)
        assert str(error) == text.format(path=file.path)
        assert isinstance(error, ShortReadError) == (failures[0].code == END_OF_FILE)


def test_memory_is_found_where_it_lies() -> None:
    array = np.arange(100, dtype=np.int32)
    tensor = torch.arange(10)
    assert find_span(array[10:20], is_written=True)[:2] == (array.ctypes.data + 40, 40)
    assert find_span(tensor[2:4], is_written=True)[:2] == (tensor.data_ptr() + 16, 16)
    assert find_span(b"", is_written=False)[1] == 0
    with BufferPool("1MiB") as pool:
        buffer = pool.take(100)
        assert find_span(buffer, is_written=True)[:2] == (buffer.address, 100)
        buffer.release()
        with pytest.raises(ValueError, match="has been released"):
            find_span(buffer, is_written=True)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (torch.zeros(4, 4)[:, 0], r"contiguous CPU tensor, got one on cpu with shape \(4,\)"),
        (torch.zeros(4, device="meta"), "contiguous CPU tensor, got one on meta"),
        (np.zeros((4, 4))[:, 0], "contiguous and writable"),
        (b"123", "contiguous and writable, got bytes"),
    ],
)
def test_memory_that_cannot_be_used_is_named(memory, message) -> None:
    with pytest.raises(ValueError, match=message):
        find_span(memory, is_written=True)


def test_a_file_can_be_closed_in_a_child_that_left_its_tickets_behind(tmp_path: Path) -> None:
    with MemoryEngine() as engine, open_file(tmp_path, "scratch") as file:
        with paused(engine):
            ticket = engine.write(file, 0, bytes(10))

            def work() -> None:
                file.close()
                assert file.buffered_descriptor == -1

            in_child(work)
        ticket.wait(PATIENCE_SECONDS)


def test_a_ticket_says_what_it_is(tmp_path: Path) -> None:
    with MemoryEngine() as engine, open_file(tmp_path, "scratch") as file:
        with paused(engine):
            ticket = engine.write(file, 0, bytes(1000))
            batch = engine.read_many(file, [0, 10], 10, bytearray(20), [0, 10])
            assert repr(ticket) == f"Ticket(write of {file.path} (1,000 bytes), under way)"
            assert "2 ranges, 20 bytes" in repr(batch)
        ticket.wait(PATIENCE_SECONDS)
        assert repr(ticket).endswith("done)")
