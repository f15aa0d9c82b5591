"""A unified tensor in ordinary torch code: in memory everything, on disk what reads rows."""

import copy
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.errors import (
    DiskTensorError,
    ReadOnlyTableError,
    RowArgumentError,
    RowIndexError,
)
from shorthaul.tensors import UnifiedTensor, quantize

ROWS = torch.arange(60.0).view(20, 3)
IDS = torch.tensor([3, 19, 3, -1, 0])


@pytest.fixture
def on_disk(tmp_path: Path) -> UnifiedTensor:
    return sh.open(sh.save_features(tmp_path / "x.npy", ROWS).path)


# In memory.


@pytest.mark.parametrize(
    "index",
    [
        IDS,
        IDS.int(),
        IDS.view(5, 1),
        IDS[:4].view(2, 2).int(),
        torch.tensor(4),
        [1, 2],
        np.array([4, -2]),
        5,
        -1,
        slice(3, 9, 2),
        (slice(2, 8), 1),
        (IDS, slice(0, 2)),
        (IDS, torch.tensor([0, 1, 2, 0, 1])),
        ROWS[:, 0] > 30,
        ROWS > 30,
        None,
        Ellipsis,
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, 4, dtype=torch.int32),
    ],
    ids=str,
)
def test_every_index_gives_what_a_plain_tensor_gives(index) -> None:
    wanted, got = ROWS[index], sh.unified(ROWS)[index]
    assert torch.equal(got, wanted)
    assert got.shape == wanted.shape


@pytest.mark.parametrize(
    "view",
    [
        lambda u: u[4:9],
        lambda u: u[3],
        lambda u: u[:, 1],
        lambda u: u.t(),
        lambda u: u.view(-1),
        lambda u: u.unsqueeze(0),
        lambda u: u.detach(),
        lambda u: u.chunk(2)[1],
        lambda u: u.unbind(1)[2],
        lambda u: u.view(torch.int32),
        lambda u: u.data,
    ],
)
def test_views_are_unified_and_alias(view) -> None:
    x = ROWS.clone()
    u = sh.unified(x, propagate=True, sparse_grad=True)
    part = view(u)
    assert type(part) is UnifiedTensor
    assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (part.propagate, part.sparse_grad) == (True, True)
    part.zero_()
    assert torch.equal(view(x), torch.zeros_like(view(x)))


def test_dtype_conversion_and_plain_results() -> None:
    u = sh.unified(ROWS)
    for made in (u.half(), u.to(torch.float64), u.clone(), u + 1, torch.relu(u), u.new_zeros(2)):
        assert type(made) is torch.Tensor
    assert torch.equal(u.half(), ROWS.half())
    assert u.to(torch.float32) is u
    assert u.cpu().data_ptr() == ROWS.data_ptr()
    assert type(u.cpu()) is torch.Tensor


def test_it_prints_as_what_it_is(on_disk: UnifiedTensor) -> None:
    u = sh.unified(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert repr(u) == "unified([[1., 2.],\n         [3., 4.]])"
    parameter = nn.Parameter(sh.unified(torch.ones(1)))
    assert repr(parameter) == "Parameter containing:\nunified([1.], requires_grad=True)"
    assert repr(parameter[:1]) == "unified([1.], grad_fn=<SliceBackward0>)"
    assert f"{u[0, 1]:.1f}" == "2.0"
    assert "disk, (20, 3), torch.float32" in repr(on_disk)


def test_numbers_come_out() -> None:
    u = sh.unified(ROWS.clone())
    assert u.tolist() == ROWS.tolist()
    assert u[1, 2].item() == 5
    array = u.numpy()
    array[0] = -1
    assert u[0].tolist() == [-1, -1, -1]
    assert np.asarray(u).ctypes.data == u.data_ptr()
    assert np.asarray(u, np.float64).dtype == np.float64
    assert torch.from_dlpack(u).data_ptr() == u.data_ptr()
    with pytest.raises(RuntimeError, match="requires grad"):
        u.requires_grad_().numpy()
    assert len(u) == 20
    assert [row.sum().item() for row in u.detach()][1] == 12


def test_a_module_keeps_it_as_parameter_and_buffer() -> None:
    module = nn.Module()
    module.table = nn.Parameter(sh.unified(ROWS.clone(), sparse_grad=True))
    module.register_buffer("fixed", sh.unified(ROWS))
    assert [name for name, _ in module.named_parameters()] == ["table"]
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert type(state["table"]) is UnifiedTensor
    assert state["table"].sparse_grad
    with torch.no_grad():
        module.table.zero_()
    before = module.table.data_ptr()
    module.load_state_dict(state)
    assert module.table.data_ptr() == before
    assert torch.equal(module.table, ROWS)
    plain = nn.Module()
    plain.table, plain.fixed = nn.Parameter(torch.zeros(20, 3)), nn.Buffer(torch.zeros(20, 3))
    plain.load_state_dict(state)
    assert torch.equal(plain.table, ROWS)
    module.load_state_dict(plain.state_dict())


def test_a_module_may_be_converted() -> None:
    module = nn.Module()
    module.table = nn.Parameter(sh.unified(ROWS.clone(), shared=True))
    assert torch.equal(module.table[IDS], ROWS[IDS])
    module.half()  # exchanges the memory under the tensor
    assert torch.equal(module.table[IDS], ROWS[IDS].half())
    assert module.table.kind == "host"
    module.table.data = torch.ones(2, 2)
    assert module.table[torch.tensor([-1])].tolist() == [[1, 1]]


@pytest.mark.parametrize("shared", [False, True])
def test_deep_copies_are_independent(shared: bool) -> None:
    u = sh.unified(ROWS.clone(), shared=shared, propagate=True)
    parameter = nn.Parameter(u)
    parameter[IDS].sum().backward()
    first, second = copy.deepcopy([parameter, parameter])
    assert first is second
    assert isinstance(first, nn.Parameter)
    assert type(first) is UnifiedTensor
    assert (first.kind, first.propagate) == (u.kind, True)
    assert torch.equal(first.grad, parameter.grad)
    with torch.no_grad():
        first.zero_()
    assert torch.equal(u, ROWS)
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(parameter[2:4])


def test_direct_paths() -> None:
    u = sh.unified(ROWS.clone())
    out = torch.empty(5, 3)
    assert u.gather(IDS, out=out) is out
    assert torch.equal(out, ROWS[IDS])
    assert torch.equal(u.gather([3, 1]), ROWS[[3, 1]])
    assert torch.equal(u.gather(range(4)), ROWS[:4])
    assert u.gather([]).shape == (0, 3)
    assert torch.equal(u.gather(IDS, device="cpu"), ROWS[IDS])
    index = torch.zeros(1, 3, dtype=torch.int64)
    assert torch.equal(u.gather(0, index), ROWS.gather(0, index))
    assert torch.equal(u.gather(dim=0, index=index), ROWS.gather(0, index))
    pointers = torch.tensor([0, 2, 2, 5])
    reduced = u.gather_reduce(pointers, IDS, "mean")
    assert torch.equal(reduced, torch.stack([ROWS[[3, 19]].mean(0), torch.zeros(3), reduced[2]]))
    weight, bias = torch.ones(2, 3), torch.ones(2)
    wanted = nn.functional.linear(ROWS[IDS], weight, bias)
    torch.testing.assert_close(u.gather_linear(IDS, weight, bias), wanted)
    assert torch.equal(u.prefetch(IDS).wait(), ROWS[IDS])
    assert torch.equal(torch.cat([*u.chunks(7)]), ROWS)
    assert u.read(2, 4).data_ptr() == u[2:4].data_ptr()
    assert u.read(-2, 40).shape == (2, 3)
    assert u.stats().rows_asked > 0
    u.advise("random")
    with pytest.raises(RowArgumentError, match="huge_pages"):
        u.advise("hurry")


def test_a_table_on_disk_takes_no_advice(tmp_path: Path) -> None:
    u = sh.open(sh.save_features(tmp_path / "x.npy", ROWS).path)
    with pytest.raises(RowArgumentError, match=r"sh\.open"):
        u.advise("random")


def test_rows_are_written() -> None:
    u = sh.unified(ROWS.clone())
    rows = torch.full((2, 3), -5.0)
    assert u.scatter_(torch.tensor([1, -1]), rows) is u
    assert u[IDS[1]].tolist() == [-5, -5, -5]
    u[torch.tensor([0])] = sh.unified(torch.full((1, 3), 8.0))
    assert u[0].tolist() == [8, 8, 8]
    u.scatter_(0, torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3))
    assert u[0].tolist() == [1, 1, 1]
    with pytest.raises(RowArgumentError, match="no_grad"):
        u.requires_grad_().scatter_(torch.tensor([1]), rows[:1])


@pytest.mark.parametrize("kind", ["host", "disk", "range"])
@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([0, 20], "row id 20 at position 1"),
        ([-21], "row id -21 at position 0"),
        ([5, 2**40], f"row id {2**40} at position 1"),
    ],
)
def test_an_id_out_of_range_is_named(on_disk: UnifiedTensor, kind, ids, said: str) -> None:
    u = {"host": sh.unified(ROWS), "disk": on_disk, "range": on_disk[:]}[kind]
    for ask in (u.__getitem__, u.gather, lambda ids: u.prefetch(ids).wait()):
        with pytest.raises(IndexError, match=said) as caught:
            ask(torch.tensor(ids))
        assert isinstance(caught.value, RowIndexError)


def test_ids_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="int32 or int64"):
        sh.unified(ROWS).gather(torch.ones(2))


@pytest.mark.parametrize("shape", [(5, 0), (0, 4), (0,), (3, 0, 2)])
def test_empty_tables(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    for u in (sh.unified(x), sh.open(sh.save_features(tmp_path / "x.npy", x).path)):
        ids = torch.arange(shape[0])
        assert u[ids].shape == shape
        assert u.gather(ids[:0]).shape == (0, *shape[1:])
        assert u[1:].cpu().shape == x[1:].shape


def test_version_counts_tell_autograd_of_writes() -> None:
    u = sh.unified(ROWS.clone())
    weight = torch.ones(2, 3, requires_grad=True)
    result = u.gather_linear(IDS, weight)
    u[IDS] = 0.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


# On disk.


def test_rows_of_a_file(on_disk: UnifiedTensor) -> None:
    u = on_disk
    assert (u.shape, u.dtype, u.kind, len(u)) == (ROWS.shape, ROWS.dtype, "disk", 20)
    for index in (
        IDS,
        IDS.int(),
        IDS.view(5, 1),
        7,
        -1,
        [1, 2],
        np.array([3]),
        ROWS[:, 0] > 30,
        (IDS, slice(0, 2)),
        (IDS, ..., 1),
    ):
        assert torch.equal(u[index], ROWS[index])
    assert torch.equal(torch.index_select(u, 0, IDS % 20), ROWS[IDS])
    assert torch.equal(nn.functional.embedding(IDS % 20, u), ROWS[IDS])
    assert torch.equal(torch.cat([*u.chunks(7)]), ROWS)
    assert torch.equal(torch.stack([*u]), ROWS)
    assert torch.equal(u.cpu(), ROWS)
    assert torch.equal(u.to("cpu"), ROWS)
    assert torch.equal(u.read(3, 5), ROWS[3:5])


def test_slices_of_a_file_are_views_of_it(on_disk: UnifiedTensor) -> None:
    with sh.meter() as measured:
        part = on_disk[4:18:2][1:5]
        assert (part.shape, part.kind) == ((4, 3), "disk")
    assert measured.read_bytes == 0
    wanted = ROWS[4:18:2][1:5]
    assert torch.equal(part[torch.tensor([3, -4])], wanted[[3, 0]])
    assert torch.equal(part.cpu(), wanted)
    assert torch.equal(part[1:3].read(0, 1), wanted[1:2])
    assert torch.equal(on_disk[...][:, :].cpu(), ROWS)
    assert torch.equal(on_disk[15:].cpu(), ROWS[15:])
    assert on_disk[9:2].shape == (0, 3)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("add", lambda u: u + 1),
        ("mul", lambda u: torch.ones(20, 3) * u),
        ("sum", lambda u: u.sum()),
        ("mm", lambda u: u @ torch.ones(3, 1)),
        ("clone", lambda u: u.clone()),
        ("_to_copy", lambda u: u.half()),
        ("numpy", lambda u: np.asarray(u)),
        ("tolist", lambda u: u.tolist()),
        ("slice", lambda u: u[:, 1:]),
        ("select", lambda u: u[:, 1]),
        ("index", lambda u: u[ROWS > 3]),
        ("index_select", lambda u: u.index_select(1, torch.tensor([0]))),
        ("add_", lambda u: u.add_(1)),
        ("index_put_", lambda u: u.__setitem__(IDS, 1.0)),
        ("copy_", lambda u: torch.zeros(20, 3).copy_(u)),
        ("cat", lambda u: torch.cat([u, u])),
        ("transpose", lambda u: u.transpose(0, 1)),
        ("relu", lambda u: torch.relu(u)),
    ],
)
def test_what_would_read_the_whole_file_is_refused(on_disk: UnifiedTensor, name, operation) -> None:
    with (
        sh.meter() as measured,
        pytest.raises(DiskTensorError, match=r"u\[ids\]|u\[a:b\]|whole|mask") as e,
    ):
        operation(on_disk)
    assert f"`{name}` is not done on a disk tensor" in str(e.value)
    assert "x.npy" in str(e.value)
    assert measured.read_bytes == 0


def test_a_file_is_never_written_through_its_tensor(on_disk: UnifiedTensor) -> None:
    with pytest.raises(ReadOnlyTableError):
        on_disk.scatter_(torch.tensor([0]), torch.ones(1, 3))


def test_quantized_rows_in_memory_are_read_by_row() -> None:
    u = sh.unified(quantize(ROWS, "int8"))
    assert (u.dtype, u.kind) == (torch.float32, "host")
    torch.testing.assert_close(u[IDS], ROWS[IDS], atol=0.3, rtol=0)
    with pytest.raises(DiskTensorError, match="`add` is not done on a quantized tensor"):
        u + 1


def test_gathers_break_compiled_graphs_and_are_right() -> None:
    u = sh.unified(ROWS)

    def double(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.relu(table[ids]) * 2

    compiled = torch.compile(double, backend="eager")
    assert torch.equal(compiled(u, IDS), double(ROWS, IDS))
    torch._dynamo.reset()
    whole = torch.compile(double, backend="eager", fullgraph=True)
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match="read and written outside of compiled graphs"
    ):
        whole(u, IDS)
    torch._dynamo.reset()
