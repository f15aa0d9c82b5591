"""The ways in which people write a training step, each with gradients equal to the last bit."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import shorthaul as sh
from tests.offload.cases import Attention, leaf
from tests.offload.keep_all import gradients_of, require_bit_equal, require_equal, small_offload


class Block(nn.Module):
    """A transformer block: attention and a perceptron, with dropout."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), 0.1, self.training)


def make_blocks(count: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count)))


def _batch(index: int = 0) -> torch.Tensor:
    return torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(index))


# Hooks around the step, as Lightning calls them


class PlainModule(nn.Module):
    """A model that brings its own steps, as in Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = make_blocks()
        self.called: list[str] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        self.called.append(f"training_step {index}")
        return self.blocks(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)

    def on_before_zero_grad(self) -> None:
        self.called.append("on_before_zero_grad")

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.called.append("on_before_backward")

    def on_after_backward(self) -> None:
        self.called.append("on_after_backward")


class OffloadingModule(PlainModule):
    """The same with offloading: switched on before the step, off before backward."""

    def __init__(self, offload: sh.offload.ActivationOffload) -> None:
        super().__init__()
        self.offload = offload

    def on_before_zero_grad(self) -> None:
        super().on_before_zero_grad()
        self.offload.__enter__()

    def on_before_backward(self, loss: torch.Tensor) -> None:
        super().on_before_backward(loss)
        self.offload.__exit__(None, None, None)


def fit(model: PlainModule, steps: int = 3) -> list[float]:
    """What a trainer does with such a module."""
    torch.manual_seed(2)
    optimizer = model.configure_optimizers()
    losses = []
    for index in range(steps):
        model.on_before_zero_grad()
        optimizer.zero_grad()
        loss = model.training_step(_batch(index), index)
        model.on_before_backward(loss)
        loss.backward()
        model.on_after_backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_hooks_as_in_lightning(tmp_path):
    plain, offloading = PlainModule(), OffloadingModule(small_offload(tmp_path))
    assert fit(plain) == fit(offloading)
    require_equal([*plain.parameters()], [*offloading.parameters()])
    assert plain.called == offloading.called
    assert offloading.offload.report().counts.offloaded > 10


# Accumulation, mixed precision, checkpoints


@pytest.mark.parametrize("budget", [None, "1MiB"])
def test_accumulation_under_autocast(budget, tmp_path):
    model = make_blocks()

    def step() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            losses = [model(_batch(index)).float().square().mean() for index in range(2)]
        losses[0].backward()
        return losses[1]

    require_bit_equal(tmp_path, [*model.parameters()], step, least=10, budget=budget)


def _checkpointed(model: nn.Sequential, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
    for block in model:
        x = checkpoint(block, x, use_reentrant=reentrant)
    return x


def _nested(model: nn.Sequential, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
    def pair(h: torch.Tensor) -> torch.Tensor:
        return checkpoint(
            model[1], checkpoint(model[0], h, use_reentrant=False), use_reentrant=False
        )

    return model[2](checkpoint(pair, x, use_reentrant=reentrant))


@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
@pytest.mark.parametrize("run", [_checkpointed, _nested])
def test_checkpoints(run, reentrant, tmp_path):
    model, x = make_blocks(), _batch().requires_grad_()
    require_bit_equal(
        tmp_path, [x, *model.parameters()], lambda: run(model, x * 2, reentrant).square().mean()
    )


@pytest.mark.parametrize("is_inside", [True, False])
def test_an_offloading_context_inside_of_others(is_inside, tmp_path):
    model = make_blocks()
    inner = small_offload(tmp_path) if is_inside else contextlib.nullcontext()

    def step() -> torch.Tensor:
        with inner:
            h = model[0](_batch())
        return model[1](h).square().mean()

    with torch.autograd.graph.save_on_cpu():
        expected = gradients_of([*model[:2].parameters()], step)
    require_equal(gradients_of([*model[:2].parameters()], step), expected)


# Tensors of other kinds


def test_a_subclass_passes_through(tmp_path):
    pair = TwoTensor(torch.randn(64, 64), torch.randn(64, 64)).requires_grad_()

    def run() -> torch.Tensor:
        pair.grad = None
        (pair * 2).sin().sum().backward()
        return torch.stack([pair.grad.a, pair.grad.b])

    expected, offload = run(), small_offload(tmp_path)
    with offload:
        assert torch.equal(expected, run())
    assert offload.report().counts.left_alone["subclass"] >= 1


def test_complex_layers(tmp_path):
    weight = leaf(64, 64, dtype=torch.complex64)
    x = leaf(32, 64, dtype=torch.complex64)

    def step() -> torch.Tensor:
        h = (x @ weight).tanh() @ weight.mH
        return torch.view_as_real(h * torch.fft.fft(h).conj()).square().mean()

    require_bit_equal(tmp_path, [x, weight], step)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_over_packed_sequences(kind, tmp_path):
    torch.manual_seed(0)
    layer = kind(32, 64, num_layers=2, bidirectional=True, dropout=0.2)
    x = leaf(20, 4, 32)

    def step() -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x * 2, torch.tensor([20, 15, 7, 2]))
        return layer(packed)[0].data.square().mean()

    require_bit_equal(tmp_path, [x, *layer.parameters()], step)


# Threads


def test_forward_and_backward_in_several_threads(tmp_path):
    models = [make_blocks(1).eval() for _ in range(4)]
    expected = [
        gradients_of([*model.parameters()], lambda model=model: model(_batch()).square().mean())
        for model in models
    ]
    offload = small_offload(tmp_path, budget="8MiB")
    failures: list[BaseException] = []

    def run(model: nn.Module) -> None:
        try:
            for _ in range(3):
                model.zero_grad()
                with offload:
                    loss = model(_batch()).square().mean()
                loss.backward()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for model, want in zip(models, expected, strict=True):
        require_equal(want, [each.grad for each in model.parameters()])
    gc.collect()
    offload.store.wait_until_idle()
    assert offload.report().live_bytes == 0


# Pipelines


def run_pipeline(
    stages: list[nn.Module],
    batches: list[torch.Tensor],
    *,
    before_forward: Callable[[Any], None] = lambda _: None,
    before_backward: Callable[[Any], None] = lambda _: None,
) -> list[str]:
    """One forward, one backward over two stages in one process; the order of what was done.

    The first stage runs one micro-batch ahead of the second, which goes backward at once.
    """
    order: list[str] = []
    ends: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    gradients: dict[int, torch.Tensor] = {}

    def forward_first(at: int) -> None:
        before_forward(("first", at))
        order.append(f"F0.{at}")
        output = stages[0](batches[at])
        ends[at] = (output, output.detach().requires_grad_())

    def both_second(at: int) -> None:
        before_forward(("second", at))
        order.append(f"F1.{at}")
        loss = stages[1](ends[at][1]).square().mean()
        before_backward(("second", at))
        order.append(f"B1.{at}")
        loss.backward()
        gradients[at] = ends[at][1].grad

    def backward_first(at: int) -> None:
        before_backward(("first", at))
        order.append(f"B0.{at}")
        ends.pop(at)[0].backward(gradients.pop(at))

    forward_first(0)
    for at in range(len(batches)):
        if at + 1 < len(batches):
            forward_first(at + 1)
        both_second(at)
        backward_first(at)
    return order


@pytest.mark.parametrize("has_hints", [True, False])
@pytest.mark.parametrize("budget", [None, "4MiB"])
def test_one_forward_one_backward_with_four_micro_batches(has_hints, budget, tmp_path):
    stages = [*make_blocks(2).eval()]
    parameters = [each for stage in stages for each in stage.parameters()]
    batches = [_batch(index) for index in range(4)]

    def gradients(**hints: Any) -> list[torch.Tensor]:
        for each in parameters:
            each.grad = None
        order = run_pipeline(stages, batches, **hints)
        assert order[:6] == ["F0.0", "F0.1", "F1.0", "B1.0", "B0.0", "F0.2"]
        return [each.grad.clone() for each in parameters]

    expected = gradients()
    offload = small_offload(tmp_path, budget=budget, policy="all")
    hints = {"before_forward": offload.micro_batch, "before_backward": offload.next_backward}
    for _ in range(3):
        with offload:
            require_equal(expected, gradients(**(hints if has_hints else {})))
    offload.store.wait_until_idle()
    report = offload.report()
    assert report.counts.offloaded > 3 * 4 * 10
    assert (report.live_bytes, report.disk_bytes) == (0, 0)
    assert not offload._order.waiting or not has_hints


# Two hundred steps


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_two_hundred_steps_of_a_model_leak_nothing(tmp_path):
    """Backward passes, dropped graphs, exceptions: counts and resident memory stay level."""
    model = make_blocks(2)
    offload = small_offload(tmp_path, budget="4MiB")

    def run(index: int) -> None:
        with offload:
            output = model(_batch(index % 3))
            if index % 7 == 3:
                return  # this graph never goes backward
            if index % 11 == 5:
                with contextlib.suppress(RuntimeError):
                    model(torch.ones(4, 32, 63))
            output.square().mean().backward()

    def held() -> dict[str, int]:
        gc.collect()
        offload.store.wait_until_idle()
        store, kinds = offload.store, ("Record", "Handle", "ForwardPass", "VersionWitness")
        objects = [type(each).__name__ for each in gc.get_objects()]
        return {
            "live bytes": store.live_bytes,
            "disk bytes": store.used_slots_bytes,
            "reserved bytes": sum(each.reserved_bytes for each in store.spools.spools),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "waiting passes": len(offload._order.waiting),
            **{kind: objects.count(kind) for kind in kinds},
        }

    for index in range(40):
        run(index)
    before, resident_bytes = held(), _resident_bytes()
    for index in range(40, 240):
        run(index)
    after = held()
    assert before["live bytes"] == after["live bytes"] == 0
    assert before["disk bytes"] == after["disk bytes"] == 0
    assert offload.store.pool.mapped_bytes <= 4 * 2**20
    assert all(after[name] <= before[name] + 1 for name in after), (before, after)
    # One step saves over 2 MB: what is lost per step would show a hundredfold.
    assert _resident_bytes() - resident_bytes < 32 * 2**20
