"""Gradients are bit-equal to keep-all, for whatever autograd may save."""

from __future__ import annotations

import gc
import inspect
import threading
import warnings
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

import shorthaul as sh
from shorthaul.errors import (
    InPlaceChangeError,
    OffloadBudgetError,
    ScratchDirectoryError,
    TemporaryFileSystemError,
)
from shorthaul.offload.saved.identity import StorageReference
from tests.offload.cases import (
    CASES,
    MODULES,
    embedding,
    leaf,
    square_transpose,
    unbound_qkv,
    views,
)
from tests.offload.keep_all import (
    gradients_of,
    require_bit_equal,
    require_equal,
    settled_report,
    small_offload,
)


def test_the_comparison_fails_on_unequal_gradients():
    with pytest.raises(AssertionError, match="gradient 0 differs"):
        require_equal([torch.ones(2)], [torch.tensor([1.0, 1.0 + 1e-7])])
    with pytest.raises(AssertionError, match="one is None"):
        require_equal([None], [torch.ones(2)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("knobs", [{}, {"budget": "1MiB"}, {"compress": "mask"}], ids=str)
def test_gradients_are_bit_equal(case, knobs, tmp_path):
    shape = (64, 192) if case is unbound_qkv else (64, 64)
    x = leaf(*shape)
    require_bit_equal(tmp_path, [x], lambda: case(x), **knobs)


# Newer versions of PyTorch ask what checkpointing shall do about hooks, and warn where nothing is said.
HOOKS = "respect_saved_tensors_hooks"
CHECKPOINTS = [{}] + (
    [{HOOKS: True}, {HOOKS: False}] if HOOKS in inspect.signature(checkpoint).parameters else []
)


@pytest.mark.parametrize("given", CHECKPOINTS, ids=str)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_under_hooks_neither_warn_nor_change_bits(given, use_reentrant, tmp_path):
    x = leaf(64, 64)

    def step() -> torch.Tensor:
        return checkpoint(
            lambda y: (y @ y).tanh() @ y, x * 1.5, use_reentrant=use_reentrant, **given
        ).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = require_bit_equal(tmp_path, [x], step)
    assert report.counts.offloaded > 0


def test_an_embedding_table_is_a_parameter_and_stays(tmp_path):
    x = leaf(64, 64)
    report = require_bit_equal(tmp_path, [x], lambda: embedding(x))
    assert report.counts.left_alone["lives anyway"] + report.counts.offloaded > 0


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_bit_equal(name, tmp_path):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module, x = make(), leaf(*shape)

    def step() -> torch.Tensor:
        output = module(x)
        return (output[0] if isinstance(output, tuple) else output).square().mean()

    require_bit_equal(tmp_path, [x, *module.parameters()], step)


def test_views_of_one_storage_are_written_once_and_come_back_as_one(tmp_path):
    x = leaf(64, 192)
    seen: list[int] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *parts):
            ctx.save_for_backward(*parts)
            return sum(part.sum() for part in parts)

        @staticmethod
        def backward(ctx, gradient):
            parts = ctx.saved_tensors
            seen.extend(part.untyped_storage().data_ptr() for part in parts)
            return tuple(gradient.expand_as(part) for part in parts)

    offload = small_offload(tmp_path)
    with offload:
        loss = Look.apply(*(x * 2).chunk(3, -1))
    offload.store.wait_until_idle()
    gc.collect()
    loss.backward()
    counts = offload.report().counts
    assert counts.offloaded == 1
    assert counts.deduplicated == 2
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_a_small_view_of_a_large_storage_takes_its_own_range_along(tmp_path):
    x = leaf(1024, 64)
    report = require_bit_equal(tmp_path, [x], lambda: (x * 2)[10:30].sin().sum())
    assert report.counts.peak_saved_bytes <= 2 * 20 * 64 * 4


def test_parameters_and_their_views_are_never_moved(tmp_path):
    module, x = nn.Linear(64, 64), leaf(64, 64)
    weight = module.weight

    def step() -> torch.Tensor:
        return (
            (module(x) @ weight.t() @ weight[:, :32] @ weight.view(32, 128)[:, :64]).square().sum()
        )

    report = require_bit_equal(tmp_path, [x, *module.parameters()], step)
    assert report.counts.left_alone["parameter"] >= 4
    assert report.counts.peak_saved_bytes < 6 * 64 * 64 * 4


def test_tied_weights(tmp_path):
    table = nn.Parameter(torch.randn(64, 32))
    ids = torch.arange(256) % 64
    require_bit_equal(
        tmp_path, [table], lambda: F.cross_entropy(F.embedding(ids, table) @ table.t(), ids)
    )


def test_buffers_are_left_alone_once_they_are_known_to_live(tmp_path):
    constant, x = torch.randn(64, 64), leaf(64, 64)
    offload = small_offload(tmp_path)
    for _ in range(3):
        with offload:
            (x * constant).sum().backward()
        offload.store.settle()
    counts = offload.report().counts
    assert counts.offloaded == 1
    assert counts.left_alone["lives anyway"] == 2


def test_what_is_still_alive_elsewhere_is_not_read_back(tmp_path):
    x = leaf(64, 64)
    offload = small_offload(tmp_path)
    with offload:
        h = x * 2
        loss = h.sin().sum()
    offload.store.wait_until_idle()
    loss.backward()
    counts = offload.report().counts
    assert counts.found_alive >= 1
    assert counts.read_bytes == 0
    del h


@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.parametrize("saves", ["input", "output"])
@pytest.mark.parametrize("is_written_first", [True, False])
def test_a_change_in_place_raises_autograds_error(is_large, saves, is_written_first, tmp_path):
    x = leaf(64, 64) if is_large else leaf(2, 2)
    offload = small_offload(tmp_path)
    with offload:
        h = x * 2
        loss = (h.sin() if saves == "input" else (h := h.exp())).sum()
        if is_written_first:
            offload.store.wait_until_idle()
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        loss.backward()
    assert isinstance(caught.value, InPlaceChangeError)
    assert "is at version 1; expected version 0 instead" in str(caught.value)


def test_a_new_version_of_a_storage_is_another_record(tmp_path):
    x = leaf(64, 64)

    def step() -> torch.Tensor:
        h = x * 2
        first = h.detach().sin() * x  # saves sin's output, not h
        h = h.relu_()  # in place: version 1, saved as the result
        return (first + h * x).sum()

    require_bit_equal(tmp_path, [x], step)


def test_views_without_a_shared_version_are_told_apart_by_their_content(tmp_path):
    x = leaf(64, 192)

    def step() -> torch.Tensor:
        first, second, third = torch.unsafe_chunk(x * 2, 3, 1)
        first = first.sigmoid_()  # changes a third of the storage; the others' versions stay
        second = second.tanh_()
        return (first * second * third.sin_()).sum()

    report = require_bit_equal(tmp_path, [x], step)
    assert report.counts.offloaded > 2


def test_retain_graph_partial_and_double_backward(tmp_path):
    x = leaf(64, 64)
    expected = torch.autograd.grad((x * 2).sin().sum(), x)[0]
    offload = small_offload(tmp_path)
    with offload:
        loss = (x * 2).sin().sum()
        unused = (x * 3).cos()  # never goes backward
        offload.store.wait_until_idle()
        for _ in range(3):
            assert torch.equal(torch.autograd.grad(loss, x, retain_graph=True)[0], expected)
        first = torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), x)[0]
    assert torch.equal(second, 6 * x.detach())
    del loss, unused, first
    gc.collect()
    report = settled_report(offload)
    assert report.live_bytes == 0
    assert report.disk_bytes == 0


def test_gradcheck_and_gradgradcheck(tmp_path):
    x = leaf(4, 8, dtype=torch.float64)
    offload = sh.offload_activations(tmp_path, minimum_bytes=64)
    with offload:
        assert torch.autograd.gradcheck(lambda y: (y @ y.t()).tanh(), x)
        assert torch.autograd.gradgradcheck(lambda y: (y @ y.t()).tanh(), x)
    assert offload.report().counts.offloaded > 0


def test_backward_after_the_block_and_after_the_context_is_forgotten(tmp_path):
    x = leaf(64, 64)
    expected = gradients_of([x], lambda: square_transpose(x))
    x.grad = None
    with small_offload(tmp_path):
        loss = square_transpose(x)
    gc.collect()
    loss.backward()
    require_equal(expected, [x.grad])


def test_a_dropped_graph_and_an_exception_in_forward_leave_nothing(tmp_path):
    x = leaf(64, 64)
    offload = small_offload(tmp_path)
    with offload:
        loss = square_transpose(x)
    del loss

    def failing() -> None:
        h = (x * 2).sin()
        raise RuntimeError(f"forward fails after {h.shape}")

    with offload, pytest.raises(RuntimeError, match="forward fails"):
        failing()
    gc.collect()
    offload.store.wait_until_idle()
    report = offload.report()
    assert (report.live_bytes, report.disk_bytes) == (0, 0)
    with offload:
        square_transpose(x).backward()  # and it still works


def test_backward_in_several_threads(tmp_path):
    leaves = [leaf(64, 64) for _ in range(4)]
    expected = [gradients_of([x], lambda x=x: square_transpose(x)) for x in leaves]
    offload = small_offload(tmp_path, budget="2MiB")
    losses = []
    with offload:
        for x in leaves:
            x.grad = None
            losses.append(square_transpose(x))
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, want in zip(leaves, expected, strict=True):
        require_equal(want, [x.grad])


def test_a_decorated_function(tmp_path):
    x = leaf(64, 64)
    expected = gradients_of([x], lambda: square_transpose(x))
    offload = small_offload(tmp_path)
    decorated = offload(lambda: square_transpose(x))
    require_equal(expected, gradients_of([x], decorated))
    assert offload.report().counts.offloaded > 0


def test_gradient_accumulation(tmp_path):
    module, batches = nn.Linear(64, 64), [leaf(64, 64).detach() + i for i in range(3)]

    def run() -> list[torch.Tensor]:
        module.zero_grad()
        for batch in batches:
            module(batch * 2).tanh().square().mean().backward()
        return [each.grad.clone() for each in module.parameters()]

    expected = run()
    with small_offload(tmp_path):
        require_equal(expected, run())


def test_micro_batches_in_the_order_of_one_forward_one_backward(tmp_path):
    x = leaf(64, 64)
    offload = small_offload(tmp_path, prefetch="64KiB")

    def forward(index: int) -> torch.Tensor:
        offload.micro_batch(index)
        return square_transpose(x * (index + 1))

    with offload:
        for _ in range(2):
            x.grad = None
            waiting = [forward(0), forward(1)]
            for index in range(2, 6):
                offload.next_backward(index - 2)
                waiting.pop(0).backward()
                waiting.append(forward(index))
            for loss in waiting:
                loss.backward()
            waiting.clear()
    plain = x.grad.clone()
    x.grad = None
    for index in range(6):
        square_transpose(x * (index + 1)).backward()
    assert torch.equal(plain, x.grad)
    assert settled_report(offload).disk_bytes == 0


def test_live_bytes_never_exceed_the_budget_at_any_event(tmp_path, monkeypatch):
    x = leaf(64, 64)
    budget = 8 * 64 * 64 * 4
    offload = small_offload(tmp_path, budget=budget)
    events = []
    for name in ("offload", "keep", "restore", "prefetch", "settle"):
        method = getattr(offload.store, name)

        def watched(*args, method=method, **kwargs):
            result = method(*args, **kwargs)
            events.append(offload.store.live_bytes)
            return result

        monkeypatch.setattr(offload.store, name, watched)

    def step() -> torch.Tensor:
        h = x * 2
        for _ in range(40):
            h = (h @ h).tanh()
        return h.sum()

    expected = gradients_of([x], step)
    for _ in range(3):
        with offload:
            require_equal(expected, gradients_of([x], step))
    assert len(events) > 200
    assert max(events) <= budget
    assert offload.report().counts.peak_saved_bytes > 4 * budget


def test_a_budget_that_cannot_work_says_which_would(tmp_path):
    x = leaf(256, 256)
    with small_offload(tmp_path, budget="128KiB"), pytest.raises(OffloadBudgetError) as caught:
        (x * 2).sin().sum().backward()
    assert caught.value.needed_bytes == 256 * 256 * 4
    assert "Raise `budget` to 262,144" in str(caught.value)


def test_memory_file_systems_are_refused_unless_asked():
    with pytest.raises(TemporaryFileSystemError, match="stays in memory"):
        sh.offload_activations("/dev/shm")
    x = leaf(64, 64)
    require_bit_equal("/dev/shm", [x], lambda: views(x), allow_memory=True)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"policy": "some"}, "policy must be 'auto', 'all', 'ssdtrain' or a callable"),
        ({"on_full": "explode"}, "on_full must be 'keep' or 'raise'"),
        ({"budget": "much"}, "expected bytes such as"),
        ({"spread": "wide"}, "'turns' or 'stripes'"),
        ({"compress": "zip"}, "no codec 'zip'"),
    ],
)
def test_wrong_knobs(knobs, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        sh.offload_activations(tmp_path, **knobs)


def test_two_hundred_steps_leak_nothing(tmp_path):
    x = leaf(64, 64)
    offload = small_offload(tmp_path, budget="1MiB")

    def files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = files()
    for _ in range(200):
        with offload:
            square_transpose(x).backward()
    gc.collect()
    report = offload.report()
    assert (report.live_bytes, report.disk_bytes) == (0, 0)
    assert files() == before
    assert offload.store.spools.spools[0].reserved_bytes == 256 * 2**20
    assert len(offload._order.waiting) <= 1
    assert offload.store.pool.mapped_bytes <= 2**20


def test_the_scope_of_an_activation_names_its_modules(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.TransformerEncoderLayer(64, 4, 128))
    scopes: list[str] = []
    with small_offload(tmp_path, policy=lambda saved: not scopes.append(saved.scope)):
        model(leaf(4, 16, 64)).sum().backward()
    assert "Sequential.TransformerEncoderLayer.Linear" in scopes


def test_what_forward_deletes_is_freed_before_forward_ends(tmp_path):
    offload = small_offload(tmp_path)
    is_alive: list[bool] = []

    class Deleting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x * 2
            reference = StorageReference(h.untyped_storage())
            y = h.sin()
            del h
            offload.store.wait_until_idle()
            is_alive.append(reference.is_alive)
            return y

    with offload:
        Deleting()(leaf(64, 64)).sum().backward()
    assert offload.report().counts.offloaded == 1
    assert is_alive == [False]


@pytest.mark.parametrize("size", [4, 64])
def test_a_graph_that_saved_its_own_results_is_freed_without_backward(size, tmp_path):
    x = leaf(size, size)
    with small_offload(tmp_path) as offload:
        results = (x * 2).exp().softmax(-1)
    reference = StorageReference(results.untyped_storage())
    del results
    gc.collect()
    assert not reference.is_alive
    assert offload.report().live_bytes == 0


def test_storages_that_lived_once_are_forgotten_when_they_die(tmp_path):
    module, offload = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), small_offload(tmp_path)
    for _ in range(200):
        with offload:
            output = module(torch.randn(64, 64))
            output.square().sum().backward()  # the output outlives its graph, and dies a step later
    assert len(offload.store._living) <= 65


def test_a_part_of_a_storage_comes_back_with_its_alignment(tmp_path):
    matrix, x = leaf(33, 33), leaf(4096)
    addresses: list[int] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            ctx.save_for_backward(part)
            addresses.append(part.data_ptr())
            return part.sum()

        @staticmethod
        def backward(ctx, gradient):
            addresses.append(ctx.saved_tensors[0].data_ptr())
            return gradient.expand(33, 33)

    def look() -> torch.Tensor:
        return Look.apply((x * 2)[3 : 3 + 33 * 33].view(33, 33))

    require_bit_equal(tmp_path, [x], look)
    assert {address % 64 for address in addresses} == {12}
    require_bit_equal(tmp_path, [matrix, x], lambda: (matrix @ (x * 2)[3:1092].view(33, 33)).sum())


def test_memory_that_is_not_pytorchs_own_stays(tmp_path):
    x = leaf(64, 64)
    data = numpy.zeros(64 * 64 * 4 + 64, dtype=numpy.uint8)
    start = -data.ctypes.data % 64 + 16
    foreign = torch.from_numpy(data[start : start + 64 * 64 * 4]).view(torch.float32).view(64, 64)
    report = require_bit_equal(tmp_path, [x], lambda: (x * 2 * foreign).sin().sum())
    assert report.counts.left_alone["memory of others"] == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_pass_through(layout, tmp_path):
    x = leaf(50, 64)

    def step() -> torch.Tensor:
        nested = torch.nested.as_nested_tensor([x[:20] * 2, x[20:] * 3], layout=layout)
        return torch.nested.to_padded_tensor(F.gelu(nested) * nested, 0.0).square().sum()

    require_bit_equal(tmp_path, [x], step)


@pytest.mark.parametrize("kind", ["missing", "file", "under a file"])
def test_a_scratch_directory_that_is_none_is_named(tmp_path, kind):
    (tmp_path / "file").touch()
    given = {"missing": "no/scratch", "file": "file", "under a file": "file/x"}[kind]
    what = "is no directory" if kind == "file" else "does not exist"
    with pytest.raises(ScratchDirectoryError, match=what) as caught:
        sh.offload_activations([tmp_path, tmp_path / given])
    assert isinstance(caught.value, OSError)
    assert caught.value.filename == str(tmp_path / given)
    assert not (tmp_path / "no").exists()
