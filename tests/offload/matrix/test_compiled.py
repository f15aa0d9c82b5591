"""Compiled blocks and models: what the compiled forward pass saves is offloaded too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.offload.keep_all import gradients_of, require_equal, small_offload

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler's own insides


class Perceptron(nn.Module):
    """A block without randomness: compiled code draws other numbers than eager code."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()


def _blocks(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Perceptron() for _ in range(count)))


def _require_equal_when_compiled(model: nn.Module, directory: object, *, least: int) -> None:
    """Compare compiled code with itself: eager code may round in other places."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    parameters = [*model.parameters()]

    def step() -> torch.Tensor:
        return model(x).square().mean()

    expected = gradients_of(parameters, step)
    offload = small_offload(directory)
    for _ in range(2):
        with offload:
            require_equal(expected, gradients_of(parameters, step))
    offload.store.wait_until_idle()
    report = offload.report()
    assert report.counts.offloaded >= least, report
    assert (report.live_bytes, report.disk_bytes) == (0, 0)


@pytest.mark.parametrize("count", [1, 2])
def test_each_block_compiled_without_a_code_generator(count, tmp_path):
    model = _blocks(count)
    for block in model:
        block.compile(backend="aot_eager")
    _require_equal_when_compiled(model, tmp_path, least=2 * count)


def test_one_block_compiled_by_inductor(tmp_path):
    model = _blocks(2)
    model[0].compile(backend="inductor")
    _require_equal_when_compiled(model, tmp_path, least=3)


def test_a_whole_model_compiled(tmp_path):
    model = _blocks(3)
    model.compile(backend="aot_eager")
    _require_equal_when_compiled(model, tmp_path, least=3)


def test_compiled_inside_of_the_block_for_the_first_time(tmp_path):
    model, x = _blocks(1), torch.randn(64, 64)
    offload = small_offload(tmp_path)
    model.compile(backend="aot_eager")
    with offload:
        got = gradients_of([*model.parameters()], lambda: model(x).square().mean())
    require_equal(gradients_of([*model.parameters()], lambda: model(x).square().mean()), got)
    assert offload.report().counts.offloaded >= 1
