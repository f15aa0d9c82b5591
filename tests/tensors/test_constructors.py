"""Sources become unified tensors without a copy, and live as long as they are needed."""

import copy
import gc
from pathlib import Path

import numpy as np
import pytest
import torch

import shorthaul as sh
from shorthaul.errors import ReadOnlyTensorError, RowArgumentError, UnifiedSourceError
from shorthaul.settings import settings
from shorthaul.tensors.tables.table import HostTable

IDS = torch.tensor([3, 0, -1, 3])


def test_a_tensor_is_shared_both_ways() -> None:
    x = torch.arange(12.0).view(4, 3)
    u = sh.unified(x)
    assert u.data_ptr() == x.data_ptr()
    x[3] = 7
    u[0].fill_(5)
    assert torch.equal(u[IDS], x[IDS])
    assert x[0].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[2:7],
        lambda x: x[::2],
        lambda x: x[:, 1:4],
        lambda x: x[:, ::2],
        lambda x: x.t(),
        lambda x: x[1:].t()[2:],
        lambda x: x[:, :0],
        lambda x: x[:0],
        lambda x: x[:, 0],
        lambda x: x.view(8, 2, 3),
        lambda x: x[3].expand(5, 6),
    ],
)
def test_offsets_and_strides_are_respected(view) -> None:
    x = view(torch.arange(48.0).view(8, 6))
    u = sh.unified(x)
    assert (u.shape, u.stride(), u.storage_offset()) == (x.shape, x.stride(), x.storage_offset())
    ids = torch.randint(len(x), (9,)) if len(x) else torch.empty(0, dtype=torch.int64)
    assert torch.equal(u[ids], x[ids])
    assert torch.equal(u + 1, x + 1)


def test_the_source_may_be_forgotten() -> None:
    u = sh.unified(torch.arange(200_000.0).view(-1, 4) + 1)  # a temporary
    v = sh.unified(np.arange(200_000.0).reshape(-1, 4) + 2)[10:]
    gc.collect()
    noise = [torch.full((200_000,), -1.0) for _ in range(8)]  # would fall on freed memory
    assert u[torch.tensor([49_999])].tolist() == [[199_997, 199_998, 199_999, 200_000]]
    assert v[torch.tensor([0])].tolist() == [[42, 43, 44, 45]]
    del noise


def test_an_array_is_shared() -> None:
    array = np.arange(10, dtype=np.int32).reshape(5, 2)[:, ::-1].copy()[1:]
    u = sh.unified(array)
    array[0] = 99
    assert u[torch.tensor([0])].tolist() == [[99, 99]]
    u[1:2].zero_()
    assert array[1].tolist() == [0, 0]


def test_a_memmap_is_shared_and_may_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    np.arange(12, dtype=np.float32).tofile(path)
    u = sh.unified(np.memmap(path, np.float32, "r+", shape=(4, 3)))
    gc.collect()
    assert u[torch.tensor([3])].tolist() == [[9, 10, 11]]
    u[0].fill_(-1)
    assert np.fromfile(path, np.float32)[:3].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("how", ["memmap", "flag", "broadcast"])
def test_memory_that_cannot_be_written_is_never_written(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.dat"
    np.ones((4, 3), np.float32).tofile(path)
    array = np.memmap(path, np.float32, "r", shape=(4, 3))
    if how == "flag":
        array = np.ones((4, 3), np.float32)
        array.flags.writeable = False
    if how == "broadcast":
        array = np.broadcast_to(np.float32(1), (4, 3))
    u = sh.unified(array)
    assert u.is_read_only
    assert torch.equal(u[IDS], torch.ones(4, 3))
    row = torch.zeros(1, 3)
    writes = [
        lambda: u.add_(1),
        lambda: u[1:].t().zero_(),
        lambda: u[0].copy_(row[0]),
        lambda: u.__setitem__(0, 5.0),
        lambda: u.__setitem__(torch.tensor([1]), 5.0),
        lambda: u.scatter_(torch.tensor([1]), row),
        lambda: u.scatter_(0, torch.zeros(1, 3, dtype=torch.int64), row),
        lambda: torch.add(torch.ones(4, 3), 1, out=u),
        lambda: u.detach().zero_(),
        lambda: u.data.zero_(),
    ]
    for write in writes:
        with pytest.raises(ReadOnlyTensorError, match="read-only memory"):
            write()
    with pytest.raises(ValueError, match="read-only"):
        u.numpy()[0] = 3
    assert u.cpu().add_(1).sum() == 24  # a copy
    assert u.read(0, 2).add_(1).sum() == 12
    assert u.sum() == 12


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (lambda: [1, 2], "builtins.list"),
        (lambda: "x.npy", "sh.open"),
        (lambda: torch.ones(2, 2).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.ones(2, device="meta"), "on meta"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "conjugate"),
        (lambda: np.arange(4.0)[::-1], "negative"),
        (lambda: np.zeros(2, ">f4"), ">f4"),
        (lambda: np.array(["a"]), "<U1"),
    ],
)
def test_what_cannot_be_shared_is_refused(source, said: str) -> None:
    with pytest.raises(UnifiedSourceError, match=r"sh\.unified expected") as caught:
        sh.unified(source())
    assert said in str(caught.value)


def test_a_unified_tensor_and_a_table_are_taken_as_they_are() -> None:
    x = torch.arange(6.0).view(3, 2)
    u = sh.unified(x)
    again = sh.unified(u, propagate=True)
    assert again.propagate
    assert not u.propagate
    assert again.data_ptr() == x.data_ptr()
    assert sh.unified(HostTable(x)).data_ptr() == x.data_ptr()


def test_new_memory() -> None:
    assert sh.unified_empty((3, 2), dtype=torch.int8).dtype is torch.int8
    assert sh.unified_empty(torch.Size([2])).shape == (2,)
    for shared in (False, True):
        zeros = sh.unified_zeros(3, 2, shared=shared, dtype=torch.float64)
        assert torch.equal(zeros.cpu(), torch.zeros(3, 2, dtype=torch.float64))
        assert zeros.kind == ("shared" if shared else "host")
        assert sh.unified_zeros(0, 3, shared=shared).shape == (0, 3)


def test_a_source_that_records_gradients_gives_a_new_leaf() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    u = sh.unified(x)
    assert u.is_leaf
    assert not u.requires_grad
    assert sh.unified(x * 2).is_leaf


class TestReadOnlyMemory:
    """What is handed out of memory that cannot be written is a copy, or refuses to be written."""

    def make(self, folder: Path) -> sh.tensors.UnifiedTensor:
        np.save(folder / "x.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
        return sh.unified(np.load(folder / "x.npy", mmap_mode="r"))

    def test_a_plain_tensor_is_a_copy(self, tmp_path):
        u = self.make(tmp_path)
        plain = u.plain()
        plain += 1  # where it lies, this would be a segmentation fault
        assert u[torch.tensor([5])].tolist() == [[10.0, 11.0]]
        assert plain[5].tolist() == [11.0, 12.0]

    def test_memory_that_can_be_written_is_shared(self):
        u = sh.unified(torch.zeros(3, 2))
        u.plain().add_(1)
        assert u[torch.tensor([0])].tolist() == [[1.0, 1.0]]

    def test_copies_and_views_keep_the_refusal(self, tmp_path):
        u = self.make(tmp_path)
        for other in (copy.copy(u), u.detach(), u.data, u[1:], u.view(12), torch.as_tensor(u)):
            assert other.is_read_only
            with pytest.raises(ReadOnlyTensorError):
                other.zero_()
        with pytest.raises(ReadOnlyTensorError, match="__dlpack__"):
            torch.from_dlpack(u)

    @pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    def test_a_tensor_that_hides_it_is_not_written_to(self, tmp_path, kernels):
        self.make(tmp_path)
        mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r"))
        u = sh.unified(mapped)
        with settings.override(kernels=kernels):
            for change in (
                lambda: u.scatter_(torch.tensor([0]), torch.ones(1, 2)),
                lambda: u[2:].scatter_(torch.tensor([0]), torch.ones(1, 2)),
                lambda: u.table.scatter_(torch.tensor([0]), torch.ones(1, 2)),
                lambda: u.add_(1),
                lambda: u.zero_(),
                lambda: u.__setitem__(0, 1.0),
                lambda: torch.add(u, 1, out=u),
                lambda: u.index_copy_(0, torch.tensor([0]), torch.ones(1, 2)),
            ):
                with pytest.raises(ReadOnlyTensorError, match="read-only memory"):
                    change()
        assert u[torch.tensor([5])].tolist() == [[10.0, 11.0]]

    def test_gathers_do_not_copy_the_table(self, tmp_path):
        u = self.make(tmp_path)
        assert u.table.tensor().data_ptr() == u.data_ptr()


def test_views_whose_memory_is_not_their_values_are_no_tables():
    u = sh.unified(torch.ones(3, 2, dtype=torch.complex64))
    ids = torch.tensor([0, 2])
    for view in (u.conj(), u.conj().imag):
        with pytest.raises(RowArgumentError, match="the values themselves"):
            view[ids]
    weight = torch.randn(4, 2)
    table = sh.unified(torch.randn(3, 2))
    for negated in (torch._neg_view(weight), torch._efficientzerotensor((4, 2))):
        torch.testing.assert_close(
            table.gather_linear(ids, negated), table.plain()[ids] @ negated.clone().t()
        )
    factors = torch._neg_view(torch.ones(2))
    reduced = table.gather_reduce(torch.tensor([0, 1, 2]), ids, "sum", factors)
    torch.testing.assert_close(reduced, -table.plain()[ids])
