"""Models are found by their calls, and what was asked for is applied once to each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from shorthaul.errors import ProcessMemoryError
from shorthaul.integrations.run import RunWishes
from shorthaul.integrations.script_models import ScriptModels, find_optimizers

CALL, BACKWARD = nn.Module.__call__, torch.Tensor.backward


@pytest.fixture
def watch() -> Iterator[Callable[..., ScriptModels]]:
    watching: list[ScriptModels] = []

    def start(**wishes: Any) -> ScriptModels:
        models = ScriptModels(RunWishes(**wishes))
        models.install()
        watching.append(models)
        return models

    yield start
    for each in watching:
        each.uninstall()
    assert nn.Module.__call__ is CALL
    assert torch.Tensor.backward is BACKWARD


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.odd = nn.Conv2d(4, 4, 3, padding_mode="reflect", padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(self.conv(x))


def test_outermost_modules_in_training_are_found(watch) -> None:
    models = watch()
    net, teacher = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4).eval()
    frozen = nn.Linear(4, 4).requires_grad_(False)
    loss_of = nn.MSELoss()
    with torch.no_grad():
        net(torch.ones(2, 4))
    assert models.seen == []
    for _ in range(2):
        loss_of(net(frozen(torch.ones(2, 4))), teacher(torch.ones(2, 4))).backward()
    assert [(each.name, each.parameters) for each in models.seen] == [("Sequential", 20)]
    assert models.backward_passes == 2
    net[0](torch.ones(2, 4))  # called by itself, it is an outermost one
    assert [each.name for each in models.seen] == ["Sequential", "Linear"]


def test_after_an_exception_the_next_call_is_an_outermost_one(watch) -> None:
    models = watch()
    net = nn.Linear(4, 4)
    with pytest.raises(RuntimeError):
        net(torch.ones(2, 5))
    nn.Sequential(net)(torch.ones(2, 4))
    assert [each.name for each in models.seen] == ["Linear", "Sequential"]


def test_convolutions_are_replaced_and_what_is_left_has_a_reason(watch) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 3, 8, 8)
    expected = net(x)
    models = watch(replaces_convs=True)
    got = net(x)
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    models.note_choices()
    (seen,) = models.seen
    assert {"conv", "odd"} == seen.changed.keys() | seen.left.keys()
    assert all(seen.changed.values())
    assert all(seen.left.values())


def test_graph_layers_are_accelerated(watch) -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason="`pip install torch-geometric`")
    layer = pyg.RGCNConv(4, 4, 2)
    x, edges = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]])
    kinds = torch.tensor([0, 1])
    expected = layer(x, edges, kinds)
    models = watch(accelerates=True)
    got = layer(x, edges, kinds)
    torch.testing.assert_close(got, expected)
    assert list(models.seen[0].changed.values()) == ["PyG RGCNConv, now sh.relational.RGCNConv"]


def test_offloading_covers_calls_and_errors_name_the_memory(watch, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shorthaul.advice.watching.memory_shares.resident_bytes", lambda: 2**20)
    models = watch(offloads=True, memory_bytes=2**30, directory=str(tmp_path))
    net = nn.Sequential(nn.Linear(512, 512), nn.GELU())
    optimizer = torch.optim.Adam(net.parameters())
    assert find_optimizers(net) == [optimizer]
    net(torch.ones(1024, 512)).sum().backward()
    assert models.offload is not None
    assert models.offload.report().counts.offloaded == 2
    assert models.shares is not None
    assert models.shares.optimizer_bytes == 2 * models.shares.gradient_bytes + 8
    models.offload.close()
    tight = watch(offloads=True, memory_bytes=2**20, directory=str(tmp_path))
    with pytest.raises(ProcessMemoryError, match=r"optimizer states 2\.0 MiB"):
        nn.Sequential(net)(torch.ones(1024, 512))
    tight.uninstall()


def test_lazy_parameters_are_waited_for(watch) -> None:
    models = watch(replaces_convs=True)
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2))
    images = torch.randn(2, 3, 8, 8)
    net(images).sum().backward()
    assert models.seen == []
    net(images).sum().backward()
    (seen,) = models.seen
    assert seen.parameters == 4 * 3 * 9 + 4 + 2 * 4 * 36 + 2


def test_an_optimizer_within_another_is_found_once() -> None:
    class Prepared(torch.optim.Optimizer):  # as accelerate's
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)

    net = nn.Linear(4, 4)
    inner = torch.optim.SGD(net.parameters(), 0.1)
    prepared, others = Prepared(inner), torch.optim.SGD(nn.Linear(4, 4).parameters(), 0.1)
    assert find_optimizers(net) == [inner]
    assert prepared.param_groups is inner.param_groups
    assert find_optimizers(nn.Sequential()) == []
    del others


def test_a_forked_process_is_not_watched(watch, tmp_path) -> None:
    watch(offloads=True, directory=str(tmp_path))
    child = os.fork()
    if child == 0:
        is_plain = nn.Module.__call__ is CALL and torch.Tensor.backward is BACKWARD
        os._exit(0 if is_plain else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert nn.Module.__call__ is not CALL


def test_compiled_models_are_found_and_give_the_same(watch) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    expected = net(x)
    models = watch()
    got = torch.compile(net, backend="eager", fullgraph=True)(x)
    assert torch.equal(got, expected)
    got.sum().backward()
    assert models.backward_passes == 1
    assert len(models.seen) == 1
