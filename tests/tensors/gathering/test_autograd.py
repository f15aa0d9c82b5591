"""Gradients through gathers are those of plain torch, and tables learn as embeddings do."""

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.tensors.gathering.autograd import row_gradient

IDS = torch.tensor([3, 0, 3, 7, 5, 3])
POINTERS = torch.tensor([0, 2, 2, 5, 6])


def make_table(*, sparse: bool = False, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    torch.manual_seed(0)
    return nn.Parameter(sh.unified(torch.randn(8, 4, dtype=dtype), sparse_grad=sparse))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, 0.1),
}


@pytest.mark.parametrize(
    ("optimizer", "sparse"),
    [
        ("sgd", False),
        ("momentum", False),
        ("adam", False),
        ("sgd", True),
        ("sparse_adam", True),
    ],
)
def test_a_table_learns_as_an_embedding_does_to_the_bit(optimizer: str, sparse: bool) -> None:
    make = OPTIMIZERS[optimizer]
    table = make_table(sparse=sparse)
    embedding = nn.Embedding(8, 4, sparse=sparse)
    with torch.no_grad():
        embedding.weight.copy_(table)
    ours, theirs = make([table]), make([embedding.weight])
    for step in range(5):
        ids = torch.randint(8, (12,), generator=torch.Generator().manual_seed(step))
        for rows, steps in ((table[ids], ours), (embedding(ids), theirs)):
            steps.zero_grad()
            rows.sin().sum().backward()
            steps.step()
        assert table.grad is not None
        assert table.grad.is_sparse is sparse
        assert torch.equal(table, embedding.weight)


def test_negative_and_shaped_ids_have_gradients() -> None:
    table, plain = make_table(), make_table().cpu().detach().clone().requires_grad_()
    ids = torch.tensor([[-1, 2], [-8, -1]])
    factors = torch.randn(2, 2, 4)
    (table[ids] * factors).sum().backward()
    (plain[ids] * factors).sum().backward()
    assert torch.equal(table.grad, plain.grad)


@pytest.mark.parametrize("shape", [(8,), (8, 0), (8, 2, 3)])
def test_rows_of_any_shape_have_gradients(shape: tuple[int, ...]) -> None:
    table = nn.Parameter(sh.unified(torch.randn(shape)))
    plain = table.detach().clone().requires_grad_()
    table[IDS].square().sum().backward()
    plain[IDS].square().sum().backward()
    assert torch.equal(table.grad, plain.grad)


def test_gradients_of_complex_rows() -> None:
    table = nn.Parameter(sh.unified(torch.randn(8, 2, dtype=torch.complex64)))
    plain = table.detach().clone().requires_grad_()
    table[IDS].abs().sum().backward()
    plain[IDS].abs().sum().backward()
    assert torch.equal(table.grad, plain.grad)


def test_gathers_pass_gradcheck() -> None:
    table = make_table(dtype=torch.float64).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: t[IDS] ** 2, table)
    assert torch.autograd.gradgradcheck(lambda t: t[IDS] ** 2, table)
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda t, w, b: t.gather_linear(IDS, w, b), (table, weight, bias)
    )


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
def test_reductions_pass_gradcheck(op: str, weighted: bool) -> None:
    table = make_table(dtype=torch.float64).detach().requires_grad_()
    weights = torch.rand(6, dtype=torch.float64, requires_grad=True) if weighted else None
    assert torch.autograd.gradcheck(
        lambda t, w: t.gather_reduce(POINTERS, IDS, op, w), (table, weights)
    )


def test_ties_of_a_maximum_share_the_gradient() -> None:
    table = nn.Parameter(sh.unified(torch.ones(4, 1)))
    table.gather_reduce(torch.tensor([0, 3]), torch.tensor([0, 1, 1]), "max").sum().backward()
    torch.testing.assert_close(table.grad, torch.tensor([[1 / 3], [2 / 3], [0], [0]]))


def test_fused_gathers_have_sparse_gradients_too() -> None:
    dense, sparse = make_table(), make_table(sparse=True)
    weight = torch.randn(3, 4)
    for table in (dense, sparse):
        table.gather_linear(IDS, weight).sum().backward()
        table.gather_reduce(POINTERS, IDS, "mean").sum().backward()
    assert sparse.grad.is_sparse
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad)


def test_nothing_is_recorded_without_need(tmp_path) -> None:
    table = make_table()
    with torch.no_grad():
        assert table[IDS].grad_fn is None
    assert table.detach()[IDS].grad_fn is None
    on_disk = sh.open(sh.save_features(tmp_path / "x.npy", table).path)
    weight = torch.randn(3, 4, requires_grad=True)
    on_disk.gather_linear(IDS, weight).sum().backward()
    torch.testing.assert_close(weight.grad, table[IDS].detach().sum(0).expand(3, 4))


def test_gradients_flow_through_cpu_and_views() -> None:
    table = make_table()
    (table.cpu() * 2).sum().backward()
    table[2:4][torch.tensor([1])].sum().backward()
    wanted = torch.full((8, 4), 2.0)
    wanted[3] += 1
    assert torch.equal(table.grad, wanted)


def test_row_gradients_add_up_repeated_ids() -> None:
    rows = torch.tensor([[1.0], [2.0], [4.0]])
    ids = torch.tensor([1, -1, 1])
    for sparse in (False, True):
        made = row_gradient(rows, ids, torch.Size([3, 1]), sparse=sparse)
        assert made.to_dense().tolist() == [[0], [5], [2]]
