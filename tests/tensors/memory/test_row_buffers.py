"""Results lie in memory of the user's, or of a pool that hands it out again when nobody sees it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shorthaul as sh
from shorthaul.errors import ReadOnlyTensorError, RowArgumentError
from shorthaul.settings import settings
from shorthaul.tensors.memory.row_buffers import empty_rows
from shorthaul.tensors.tables.table import HostTable

LARGE = (1024, 1024)


def test_memory_is_used_again_when_the_last_tensor_is_gone():
    with settings.override(row_buffer_bytes="64MiB"):
        first = empty_rows(LARGE, torch.float32)
        address = first.data_ptr()
        view = first[3]
        del first
        other = empty_rows(LARGE, torch.float32)
        assert other.data_ptr() != address  # the view still lies there
        del view
        assert empty_rows(LARGE, torch.float32).data_ptr() == address


def test_more_than_the_pool_is_ordinary_memory():
    with settings.override(row_buffer_bytes="9MiB"):
        held = [empty_rows(LARGE, torch.float32) for _ in range(4)]
        for number, each in enumerate(held):
            each.fill_(number)
        assert [int(each[0, 0]) for each in held] == [0, 1, 2, 3]
        assert len({each.data_ptr() for each in held}) == 4


def test_small_results_and_no_pool():
    assert empty_rows((3, 0), torch.int8).shape == (3, 0)
    with settings.override(row_buffer_bytes=0):
        assert empty_rows(LARGE, torch.float64).shape == LARGE


def make_table() -> torch.Tensor:
    return torch.arange(24.0).view(8, 3)


class TestGivenMemory:
    """`out=` is held to what torch's own operators are: nothing is wrong in silence."""

    ids = torch.tensor([5, 0, 5])

    def gather(self, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return sh.unified(table).gather(self.ids, out=out)

    @pytest.mark.parametrize("where", ["memory", "disk"])
    def test_a_graph_that_needs_what_was_written_over_says_so(self, tmp_path, where):
        table = make_table()
        np.save(tmp_path / "x.npy", table.numpy())
        u = sh.unified(table) if where == "memory" else sh.open(tmp_path / "x.npy")
        buffer = torch.ones(3, 3)
        before = buffer._version
        loss = (buffer * torch.ones(3, 3, requires_grad=True)).sum()
        assert u.gather(self.ids, out=buffer) is buffer
        assert buffer._version > before
        assert torch.equal(buffer, table[self.ids])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_the_next_write_gets_the_next_version(self):
        buffer = torch.empty(3, 3)
        versions = [self.gather(make_table(), buffer)._version for _ in range(3)]
        assert versions == sorted(set(versions))

    @pytest.mark.parametrize(
        "overlap",
        [
            lambda table: table[:3],
            lambda table: table[4:7],
            lambda table: table.view(-1)[1:10].view(3, 3),
            lambda table: table.view(-1)[-9:].view(3, 3),
        ],
        ids=["first rows", "inner rows", "parts of rows", "last rows"],
    )
    def test_memory_of_the_table_is_refused(self, overlap):
        table = make_table()
        with pytest.raises(RowArgumentError, match="memory that does not overlap the table"):
            self.gather(table, overlap(table))
        assert torch.equal(table, make_table())

    def test_memory_of_the_ids_is_refused(self):
        ids = torch.tensor([1, 0])
        with pytest.raises(RowArgumentError, match="memory that does not overlap the table"):
            sh.unified(torch.arange(6)).gather(ids, out=ids)
        assert ids.tolist() == [1, 0]

    def test_memory_beside_and_between_the_rows_is_taken(self):
        whole = torch.zeros(10, 4)
        whole[:, :2] = torch.arange(20.0).view(10, 2)
        between = whole[3, 2:].view(1, 2)
        table = sh.unified(whole[:, :2])
        assert table.gather(torch.tensor([9]), out=between).tolist() == [[18.0, 19.0]]
        tail = torch.zeros(40)
        tail[:20] = torch.arange(20.0)
        out = sh.unified(tail[:20].view(10, 2)).gather(self.ids, out=tail[20:26].view(3, 2))
        assert out.tolist() == [[10.0, 11.0], [0.0, 1.0], [10.0, 11.0]]

    def test_read_only_memory_is_refused(self, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((3, 3), np.float32))
        read_only = sh.unified(np.load(tmp_path / "x.npy", mmap_mode="r"))
        with pytest.raises(ReadOnlyTensorError, match="`out=` cannot change"):
            self.gather(make_table(), read_only)
        on_disk = sh.open(tmp_path / "x.npy")
        with pytest.raises(ReadOnlyTensorError, match="`out=` cannot change"):
            self.gather(make_table(), on_disk)

    @pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
    def test_a_tensor_around_a_map_for_reading_is_refused(self, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((3, 3), np.float32))
        mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r"))
        with pytest.raises(ReadOnlyTensorError, match="`out=` cannot change"):
            self.gather(make_table(), mapped)
        private = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
        self.gather(make_table(), private)

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            (torch._neg_view(torch.zeros(3, 3)), "values themselves"),
            (torch._efficientzerotensor((3, 3)), "values themselves"),
            (torch.zeros(3, 3, requires_grad=True), "does not require grad"),
            (torch.zeros(9), r"of shape \(3, 3\)"),
            (torch.zeros(1, 9), r"of shape \(3, 3\)"),
            (torch.zeros(3, 6)[:, ::2], "contiguous"),
            (torch.zeros(3, 3, dtype=torch.float64), "torch.float32"),
        ],
        ids=["negated", "zeros", "requires grad", "flat", "reshaped", "strided", "another dtype"],
    )
    def test_what_would_not_hold_the_rows_is_refused(self, out, message):
        with pytest.raises(RowArgumentError, match=message):
            self.gather(make_table(), out)

    def test_inference_tensors_as_torch_takes_them(self):
        with torch.inference_mode():
            buffer = torch.zeros(3, 3)
            assert torch.equal(self.gather(make_table(), buffer), make_table()[self.ids])
        with pytest.raises(RowArgumentError, match="an inference tensor outside inference mode"):
            self.gather(make_table(), buffer)

    @pytest.mark.parametrize("name", ["gather_reduce", "gather_linear"])
    def test_reductions_and_products_keep_the_same_rules(self, name):
        table = HostTable(make_table())
        call = {
            "gather_reduce": lambda out: table.gather_reduce(
                torch.tensor([0, 1, 3]), self.ids, out=out
            ),
            "gather_linear": lambda out: table.gather_linear(self.ids[:2], torch.eye(3), out=out),
        }[name]
        buffer = torch.zeros(2, 3)
        before = buffer._version
        call(buffer)
        assert buffer._version > before
        with pytest.raises(RowArgumentError, match="memory that does not overlap the table"):
            call(table.stored.values[:2])
