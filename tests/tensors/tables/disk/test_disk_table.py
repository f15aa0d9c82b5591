"""Tables on disk keep the contract, read each row once, and name what they could not read."""

from __future__ import annotations

import errno
import math
import os
import pickle
import threading
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import ChangedFileError, ReadOnlyTableError, RowReadError
from shorthaul.settings import settings
from shorthaul.storage import (
    Fault,
    MemoryEngine,
    StorageEngine,
    ThreadEngine,
    faulty_engine,
    throttled_engine,
)
from shorthaul.tensors.files.layout import DiskLayout
from shorthaul.tensors.tables.disk.disk_table import DiskTable
from shorthaul.tensors.tables.quantized import quantize_rows
from tests.contracts.row_table_contract import RowTableContract, ids_of, values_of


def write(values: torch.Tensor, directory: Path, *, before: bytes = b"") -> DiskLayout:
    """The rows in a raw file, after some other bytes."""
    path = directory / "rows.bin"
    content = values.contiguous().flatten().view(torch.uint8) if values.numel() else values
    path.write_bytes(before + bytes(content.flatten().tolist()))
    stride_bytes = math.prod(values.shape[1:]) * values.element_size()
    return DiskLayout(path, len(before), values.dtype, tuple(values.shape), stride_bytes)


class TestDiskTable(RowTableContract):
    def make(self, values, directory):
        return DiskTable(write(values, directory))


class TestWithOffsetAndThreads(RowTableContract):
    def make(self, values, directory):
        layout = write(values, directory, before=b"a header of odd length")
        return DiskTable(layout, engine=ThreadEngine(depth=2), buffer_bytes="128KiB")


class TestWithCache(RowTableContract):
    def make(self, values, directory):
        layout = write(values, directory)
        return DiskTable(layout, cache="sieve", cache_bytes=max(1, 11 * layout.row_bytes))


class TestWithoutCompiler(RowTableContract):
    @pytest.fixture(autouse=True)
    def _plain(self):
        with settings.override(kernels="torch", engine="thread"):
            yield

    def make(self, values, directory):
        layout = write(values, directory)
        engine = ThreadEngine(depth=2)
        return DiskTable(
            layout, cache="sieve", cache_bytes=max(1, 7 * layout.row_bytes), engine=engine
        )


@pytest.mark.parametrize("policy", ["sieve", "belady", torch.arange(0, 60, 3)], ids=str)
@pytest.mark.parametrize("kernels", ["generated", "torch"])
def test_a_cache_changes_no_row(tmp_path, policy, kernels):
    values = values_of(60, 5)
    with (
        settings.override(kernels=kernels, engine="thread"),
        ThreadEngine(depth=2) as engine,
        DiskTable(
            write(values, tmp_path), cache=policy, cache_bytes=12 * 20, engine=engine
        ) as table,
    ):
        batches = [ids_of(30, 60, seed) for seed in range(6)]
        for batch in batches:
            table.expect(batch)
        for batch in batches:
            assert torch.equal(table.gather(batch), values[batch])
        assert 0 < table.stats().hits < table.stats().unique_rows


def test_repeated_rows_are_read_once(tmp_path):
    values = values_of(64, 1024)
    with DiskTable(write(values, tmp_path)) as table, sh.meter() as meter:
        got = table.gather(torch.tensor([9, 9, 50, 9, 50]))
    assert torch.equal(got, values[[9, 9, 50, 9, 50]])
    assert meter.read_bytes == 2 * 4096
    assert table.stats().unique_rows == 2
    assert table.stats().read_bytes == 2 * 4096


def test_more_rows_than_buffers_come_in_pieces(tmp_path):
    values = values_of(2000, 256)
    with DiskTable(write(values, tmp_path), buffer_bytes="256KiB") as table:
        ids = ids_of(3000, 2000)
        with sh.meter() as meter:
            got = table.gather(ids)
        assert torch.equal(got, values[ids])
    # The result itself, and no more on its way than the buffers hold.
    assert meter.kept_bytes.get("rows on their way from disk", 0) <= 2**18


def test_tickets_that_nobody_waits_for_do_not_block_others(tmp_path):
    values = values_of(2000, 256)
    with DiskTable(write(values, tmp_path), buffer_bytes="256KiB") as table:
        tickets = [table.prefetch(torch.arange(2000)) for _ in range(3)]
        assert torch.equal(table.gather(torch.arange(500)), values[:500])
        for ticket in tickets:
            assert torch.equal(ticket.wait(), values)


def test_a_slow_disk_gives_the_same_rows(tmp_path):
    values = values_of(300, 64)
    engine = throttled_engine(MemoryEngine(), bytes_per_second=50e6, latency_seconds=1e-3)
    with engine, DiskTable(write(values, tmp_path), engine=engine) as table:
        ticket = table.prefetch(torch.arange(300))
        assert torch.equal(ticket.wait(), values)
        assert table.stats().waited_seconds > 0


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        (Fault("errno", 2, code=errno.EIO), errno.EIO, "EIO"),
        (Fault("short", 2, moved_bytes=100), errno.ENODATA, "the file ends early: 100 of"),
    ],
    ids=["EIO", "short read"],
)
@pytest.mark.parametrize("cache", [None, "sieve"])
def test_rows_that_could_not_be_read_are_named(tmp_path, fault, code, message, cache):
    values = values_of(3000, 1024)
    layout = write(values, tmp_path)
    with (
        faulty_engine(MemoryEngine(), [fault]) as engine,
        DiskTable(layout, engine=engine, cache=cache) as table,
    ):
        with pytest.raises(RowReadError, match=message) as caught:
            table.gather(torch.tensor([2900, 7, 1400, 1400]))
        assert caught.value.rows == (1400,)  # the second request, by place in the file
        assert caught.value.errno == code
        assert str(layout.path) in str(caught.value)
        # The fault is over: the table still works, and kept nothing wrong.
        assert torch.equal(table.gather(torch.tensor([1400, 7])), values[[1400, 7]])


def test_a_ticket_tells_its_error_when_it_is_waited_for(tmp_path):
    layout = write(values_of(30, 1024), tmp_path)
    engine: StorageEngine = faulty_engine(MemoryEngine(), [Fault("errno", onwards=True)])
    with engine, DiskTable(layout, engine=engine) as table:
        ticket = table.prefetch(torch.tensor([1]))
        for _ in range(2):
            with pytest.raises(RowReadError, match="rows 1 were not read"):
                ticket.wait()
        with pytest.raises(RowReadError):
            table.gather_reduce(torch.tensor([0, 1]), torch.tensor([1]))


def test_a_file_that_shrank_is_noticed(tmp_path):
    layout = write(values_of(100, 16), tmp_path)
    with DiskTable(layout) as table:
        os.truncate(layout.path, 1000)
        with pytest.raises(
            ChangedFileError, match="1,000 bytes now, and its rows end at byte 6,400"
        ):
            table.gather(torch.tensor([0]))
    with pytest.raises(ChangedFileError, match="1,000 bytes now"):
        DiskTable(layout)


def test_a_file_that_was_replaced_is_noticed(tmp_path):
    layout = write(values_of(100, 16), tmp_path)
    with DiskTable(layout) as table:
        other = tmp_path / "other"
        other.write_bytes(layout.path.read_bytes())
        other.replace(layout.path)
        with pytest.raises(ChangedFileError, match="another file has taken its name"):
            table.gather(torch.tensor([0]))


def test_a_file_that_vanished_is_noticed(tmp_path):
    layout = write(values_of(100, 16), tmp_path)
    with DiskTable(layout) as table:
        layout.path.unlink()
        with pytest.raises(ChangedFileError, match="no longer there"):
            table.gather(torch.tensor([0]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    layout = write(values_of(10, 16), tmp_path)
    layout.path.chmod(0)
    with pytest.raises(PermissionError):
        DiskTable(layout)


def test_nothing_is_written_to_a_file(tmp_path):
    layout = write(values_of(10, 16), tmp_path)
    with DiskTable(layout) as table:
        assert table.tensor() is None
        with pytest.raises(ReadOnlyTableError, match="opened for reading only"):
            table.scatter_(torch.tensor([0]), torch.zeros(1, 16))


def test_columns_that_were_cut_off_are_skipped(tmp_path):
    values = values_of(50, 20)
    layout = write(values, tmp_path)
    part = DiskLayout(layout.path, 16, torch.float32, (50, 7), layout.row_stride_bytes)
    with DiskTable(part) as table:
        ids = ids_of(30, 50)
        assert torch.equal(table.gather(ids), values[ids, 4:11])


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
def test_quantized_rows_are_widened(tmp_path, kind):
    values = values_of(200, 24)
    packed = quantize_rows(values, kind)
    scales = b"" if packed.scales is None else packed.scales.numpy().tobytes()
    stored = write(packed.values, tmp_path, before=scales)
    layout = DiskLayout(
        stored.path,
        stored.offset_bytes,
        torch.float32,
        stored.shape,
        stored.row_stride_bytes,
        DiskLayout(stored.path, 0, torch.float32, (200,), 4) if scales else None,
        packed.values.dtype,
    )
    seen, ids = packed.widened(), ids_of(60, 200)
    with DiskTable(layout, cache="sieve") as table:
        assert torch.equal(table.gather(ids), seen[ids])
        assert torch.equal(table.prefetch(ids).wait(), seen[ids])
        pointers = torch.tensor([0, 20, 60])
        got = table.gather_reduce(pointers, ids, "sum")
        expected = torch.stack([seen[ids[:20]].sum(0), seen[ids[20:]].sum(0)])
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-3)
        weight = values_of(5, 24, seed=2)
        linear = table.gather_linear(ids, weight)
        torch.testing.assert_close(linear, seen[ids] @ weight.t(), rtol=1e-4, atol=1e-1)


def test_the_cache_saves_reads_and_says_how_many(tmp_path):
    values = values_of(400, 1024)
    with DiskTable(write(values, tmp_path), cache="sieve", cache_bytes="4MiB") as table:
        table.gather(torch.arange(100))
        with sh.meter() as meter:
            got = table.gather(torch.arange(50, 150))
        assert torch.equal(got, values[50:150])
        assert meter.read_bytes == 50 * 4096
        assert meter.bytes_between(source="row cache") == 50 * 4096
        stats = table.stats()
        assert (stats.hits, stats.misses, stats.saved_bytes) == (50, 150, 50 * 4096)
        assert stats.hit_rate == 0.25


def test_a_window_keeps_what_comes_soonest(tmp_path):
    values = values_of(100, 64)
    batches = [torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5]), torch.tensor([0, 1, 3])]
    with DiskTable(write(values, tmp_path), cache="belady", cache_bytes=3 * 256) as table:
        for batch in batches:
            table.expect(batch)
        for batch in batches:
            assert torch.equal(table.gather(batch), values[batch])
        assert table.stats().hits == 3  # 0 and 1 were kept for later, and 3 instead of 2
        table.expect(batches[0])
        table.forget_expected()


def test_a_table_travels_to_another_process_as_its_name(tmp_path):
    values = values_of(30, 8)
    with (
        DiskTable(write(values, tmp_path), cache="sieve", cache_bytes=4096) as table,
        pickle.loads(pickle.dumps(table)) as other,
    ):
        assert torch.equal(other.gather(torch.arange(30)), values)
        assert other.cache is not table.cache
        assert other.cache.capacity == table.cache.capacity


def test_several_threads_share_a_table(tmp_path):
    values = values_of(500, 64)
    failures = []
    with DiskTable(write(values, tmp_path), cache="sieve", cache_bytes=100 * 256) as table:

        def work(seed: int) -> None:
            for round_number in range(5):
                ids = ids_of(200, 500, seed=seed * 10 + round_number)
                if not torch.equal(table.gather(ids), values[ids]):
                    failures.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not failures
