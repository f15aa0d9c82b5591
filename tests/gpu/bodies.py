"""What must hold on every CUDA device, with the CPU as oracle: one function for each promise.

They run on a real one under `make test-gpu`, and on pretended ones in `make test`, so that they are known to
be right themselves.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import shorthaul as sh
from shorthaul.errors import LateRowIndexError, RowArgumentError, RowIndexError
from shorthaul.graphs import LinkLoader, MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.settings import settings
from shorthaul.tensors.cuda.gather import require_ids_in_range

Body = Callable[[torch.device], None]
BODIES: list[Body] = []
# Of sums in another order, in float32.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def body(function: Body) -> Body:
    BODIES.append(function)
    return function


def _graph(relations: int = 3) -> RelationalGraph:
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(12, (2, 40), generator=draw)
    relation = torch.randint(relations, (40,), generator=draw)
    return RelationalGraph.from_edges(
        source, target, relation, num_nodes=12, num_relations=relations
    )


@body
def rows_are_moved_bit_by_bit(device: torch.device) -> None:
    ids = torch.tensor([99, 0, -1, 7, 7])
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        for width in (1, 100):
            plain = torch.randint(100, (100, width)).to(dtype)
            wanted = plain[ids].view(torch.uint8)
            for table in (sh.unified(plain), sh.unified(plain.clone())[:]):
                for given in (ids, ids.to(device), ids.int().to(device)):
                    got = table.gather(given, device=device)
                    assert got.device == device
                    assert torch.equal(got.cpu().view(torch.uint8), wanted)


@body
def parts_of_rows_and_of_tables_are_read_where_they_lie(device: torch.device) -> None:
    plain = torch.randn(100, 40)
    table, ids = sh.unified(plain), torch.tensor([3, 0, 19], device=device)
    for part, wanted in (
        (table[20:], plain[20:]),
        (table[::2], plain[::2]),
        (table[:, 4:20], plain[:, 4:20]),
        (table.view(100, 5, 8), plain.view(100, 5, 8)),
    ):
        assert torch.equal(part.gather(ids).cpu(), wanted[ids.cpu()])
    torch.testing.assert_close((table * 2).cpu(), plain * 2)


@body
def ids_out_of_range_are_named(device: torch.device) -> None:
    table = sh.unified(torch.randn(10, 8))
    for wrong in (10, -11):
        given = torch.tensor([1, wrong])
        with pytest.raises(RowIndexError, match=str(wrong)):
            table.gather(given, device=device)
        with (
            settings.override(device_checks="at_once"),
            pytest.raises(RowIndexError, match=str(wrong)),
        ):
            table.gather(given.to(device), device=device)


@body
def wrong_ids_on_a_device_are_told_later(device: torch.device) -> None:
    table = sh.unified(torch.randn(10, 8))
    right, wrong = (torch.tensor(each, device=device) for each in ([1, 2], [1, 10]))
    for part in (table, table[2:]):
        got = part.gather(wrong, device=device)
        assert torch.equal(got[1].cpu(), torch.zeros(8))
        torch.cuda.synchronize(device)
        with pytest.raises(LateRowIndexError, match="position 1 "):
            table.gather(right, device=device)
        table.gather(right, device=device)  # told once
        part.gather(wrong, device=device)
        with pytest.raises(LateRowIndexError, match="position 1 "):
            require_ids_in_range()
        require_ids_in_range()
    for pointers in ([0, 3], [1, 2], [0, 2, 1, 2]):
        table.gather_reduce(torch.tensor(pointers, device=device), right, "sum")
        with pytest.raises(RowArgumentError, match="ascending from 0"):
            require_ids_in_range()
    table.gather_reduce(torch.tensor([0, 1, 2], device=device), right, "sum")
    require_ids_in_range()


@body
def segments_are_reduced_as_on_the_cpu(device: torch.device) -> None:
    pointers, ids = torch.tensor([0, 3, 3, 5]), torch.tensor([9, 0, 9, 4, 5])
    weights = torch.rand(5)
    for width in (1, 24, 128):
        table = sh.unified(torch.randn(10, width))
        for op in ("sum", "mean", "max"):
            for given in (None, weights):
                expected = table.gather_reduce(pointers, ids, op, given, device="cpu")
                moved = None if given is None else given.to(device)
                got = table.gather_reduce(pointers.to(device), ids.to(device), op, moved)
                torch.testing.assert_close(got.cpu(), expected, **CLOSE)


@body
def gradients_of_gathers_come_back_to_the_host(device: torch.device) -> None:
    plain, ids = torch.randn(20, 8), torch.tensor([3, 1, 3])
    for is_sparse in (False, True):
        near = plain.clone().requires_grad_()
        F.embedding(ids, near).square().sum().backward()
        far = sh.unified(plain.clone(), sparse_grad=is_sparse).requires_grad_()
        far[ids.to(device)].square().sum().backward()
        gradient = far.grad.to_dense() if is_sparse else far.grad
        torch.testing.assert_close(gradient, near.grad)


@body
def layers_compute_what_the_cpu_computes(device: torch.device) -> None:
    graph, one, x = _graph(), _graph(1), torch.randn(12, 8)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.arange(5)).blocks
    kinds = sh.relational
    for layer, edges in (
        (kinds.RGCNConv(8, 4, 3), graph),
        (kinds.RGATConv(8, 4, 3), block),
        (kinds.SAGEConv(8, 4), one),
    ):
        inputs = x if edges is not block else x[block.source_nodes.long()]
        far = copy.deepcopy(layer).to(device)
        there = inputs.to(device).requires_grad_()
        here = inputs.clone().requires_grad_()
        got = far(there, edges.to(device) if edges is block else edges)
        expected = layer(here, edges)
        torch.testing.assert_close(got.cpu(), expected, **CLOSE)
        got.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad, **CLOSE)
        for mine, yours in zip(far.parameters(), layer.parameters(), strict=True):
            assert (mine.grad is None) == (yours.grad is None)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad.cpu(), yours.grad, **CLOSE)


@body
def generated_convolutions_compute_what_the_cpu_computes(device: torch.device) -> None:
    for groups, padding, stride in ((1, 1, 1), (2, 0, 2)):
        x, weight = torch.randn(2, 4, 6, 6), torch.randn(4, 4 // groups, 3, 3)
        here = [each.clone().requires_grad_() for each in (x, weight)]
        there = [each.to(device).requires_grad_() for each in (x, weight)]
        options = {"padding": padding, "groups": groups, "stride": stride}
        expected = F.conv2d(*here, **options)
        with settings.override(kernels="generated"):
            got = sh.conv2d(*there, **options)
            got.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(got.cpu(), expected, **CLOSE)
        for mine, yours in zip(there, here, strict=True):
            torch.testing.assert_close(mine.grad.cpu(), yours.grad, rtol=1e-4, atol=1e-3)


@body
def an_offloaded_step_is_bit_equal(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU()).to(device)
    x = torch.randn(256, 64, device="cpu").to(device)
    model(x).sum().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    with tempfile.TemporaryDirectory() as directory:
        offload = sh.offload_activations(directory, minimum_bytes=1024, policy="all")
        for _ in range(3):
            model.zero_grad()
            with offload:
                model(x).sum().backward()
            for parameter, wanted in zip(model.parameters(), expected, strict=True):
                assert torch.equal(parameter.grad, wanted)
        assert offload.report().counts.offloaded > 0
        offload.close()


@body
def batches_are_whole_on_whatever_stream_takes_them(device: torch.device) -> None:
    graph, plain = _graph(), torch.randn(12, 100)
    features = sh.unified(plain)
    stream = torch.cuda.Stream(device)
    for _ in range(5):
        with torch.cuda.stream(stream):
            loader = MiniBatchLoader(
                graph, features, batch_size=3, fan_outs=[2], device=device, prefetch=2
            )
            for batch in loader:
                seen = batch.features + 0
                assert torch.equal(seen.cpu(), plain[batch.input_nodes.cpu().long()])
            for links in LinkLoader(graph, batch_size=20, fan_outs=[2], device=device):
                assert links.labels.device == links.sources.device == device


@body
def writes_wait_for_reads(device: torch.device) -> None:
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    count, rounds = (8, 2) if is_interpreted else (100_000, 50)
    table, ids = sh.unified(torch.zeros(count, 128)), torch.arange(count)
    for number in range(rounds):
        rows = table.gather(ids, device=device)
        table.scatter_(ids, torch.full((count, 128), number + 1.0))
        assert bool((rows == number).all()), f"round {number}: rows of another round were read"


@body
def unified_parameters_are_trained_where_they_lie(device: torch.device) -> None:
    plain, ids = torch.randn(20, 8), torch.tensor([3, 1, 3])
    near, far = nn.Embedding(20, 8, _weight=plain.clone()), nn.Module()
    far.table = nn.Parameter(sh.unified(plain.clone()))
    far.to(device)
    optimizers = torch.optim.Adam(near.parameters()), torch.optim.Adam(far.parameters())
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        near(ids).square().sum().backward()
        far.table[ids.to(device)].square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(far.table.detach().cpu(), near.weight.detach())
