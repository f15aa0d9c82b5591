"""Models are found by their calls, and what was asked for is applied once to each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from shorthaul.conv import replace_convs
from shorthaul.conv.problem import ConvProblem
from shorthaul.errors import ProcessMemoryError
from shorthaul.integrations import script_models
from shorthaul.integrations.run import RunWishes
from shorthaul.integrations.script_models import (
    ScriptModels,
    _describe_choice,
    find_optimizers,
)
from shorthaul.integrations.step_reports import StepReports
from shorthaul.jit import Choice

CALL, BACKWARD = nn.Module.__call__, torch.Tensor.backward


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ScriptModels]]:
    watching: list[ScriptModels] = []
    others = {id(each): each for each in find_optimizers()}  # of other tests in this process

    def find(module: nn.Module | None = None) -> list[torch.optim.Optimizer]:
        return [each for each in find_optimizers(module) if id(each) not in others]

    monkeypatch.setattr(script_models, "find_optimizers", find)

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


def test_models_that_are_only_asked_are_changed_at_their_first_call(watch) -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        expected = net(x)
    models = watch(replaces_convs=True)
    with torch.inference_mode():
        torch.testing.assert_close(net(x), expected)
    assert type(net.conv) is not nn.Conv2d
    models.note_choices()
    (seen,) = models.seen
    assert not seen.is_trained
    assert seen.convolutions == 2
    assert "conv" in seen.changed.keys() | seen.left.keys()
    net.train()(x).sum().backward()
    assert models.seen == [seen]
    assert seen.is_trained


def test_graph_layers_are_accelerated_in_inference(watch) -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason="`pip install torch-geometric`")
    layer = pyg.RGCNConv(4, 4, 2).eval()
    x, edges = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]])
    models = watch(accelerates=True)
    with torch.no_grad():
        layer(x, edges, torch.tensor([0, 1]))
    models.note_choices()
    assert list(models.seen[0].changed.values()) == ["PyG RGCNConv, now sh.relational.RGCNConv"]
    assert models.seen[0].graph_layers == 1


def test_graph_layers_that_learn_their_widths_when_called_are_told_of(watch) -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason="`pip install torch-geometric`")

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.layer = pyg.SAGEConv(-1, 4)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.layer(self.first(x), edges)

    models = watch(accelerates=True)
    net, x, edges = Late(), torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]])
    for _ in range(2):
        net(x, edges).sum().backward()
    models.note_choices()
    assert list(models.seen[0].changed) == ["layer"]


@pytest.mark.parametrize(
    ("problem", "chosen", "verb", "told"),
    [
        (False, [], "left", "was not called"),
        (True, [], "left", "its kernels were not compiled before the end"),
        (True, ["aten"], "left", "was measured to be faster"),
        (True, ["aten", "window order"], "changed", "convolution, inference: aten, training: "),
    ],
)
def test_what_is_told_of_a_layer_is_what_became_of_it(
    problem: bool, chosen: list[str], verb: str, told: str
) -> None:
    layer = replace_convs(nn.Conv2d(3, 4, 3)).layers[0]
    if problem:
        layer.problem = ConvProblem(3, 4, (1, 3, 3))
    modes = ("inference", "training")
    layer.choices = {
        mode: Choice(name, "measured") for mode, name in zip(modes, chosen, strict=False)
    }
    layer._decided = {(mode, "of one size"): each for mode, each in layer.choices.items()}
    assert _describe_choice(layer)[0] == verb
    assert told in _describe_choice(layer)[1]


def test_graph_layers_are_accelerated(watch) -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason="`pip install torch-geometric`")
    layer = pyg.RGCNConv(4, 4, 2)
    x, edges = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]])
    kinds = torch.tensor([0, 1])
    expected = layer(x, edges, kinds)
    models = watch(accelerates=True)
    got = layer(x, edges, kinds)
    torch.testing.assert_close(got, expected)
    models.note_choices()
    assert list(models.seen[0].changed.values()) == ["PyG RGCNConv, now sh.relational.RGCNConv"]


def test_memory_counts_what_other_models_are_trained_with(watch, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shorthaul.advice.watching.memory_shares.resident_bytes", lambda: 2**20)
    encoder, decoder, third = (nn.Linear(512, 512) for _ in range(3))
    both = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.1, momentum=0.9)
    alone = torch.optim.SGD(third.parameters(), 0.1)
    models = watch(offloads=True, memory_bytes=2**30, directory=str(tmp_path))
    decoder(encoder(torch.ones(8, 512))).sum().backward()
    assert models.offload is not None
    assert models.shares is not None
    models.offload.close()
    size = 513 * 512 * 4
    assert models.shares.gradient_bytes == 3 * size
    assert models.shares.optimizer_bytes == 2 * size
    del both, alone


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
    # Each of the two parameters has a step of four bytes beside its moments.
    assert models.shares.optimizer_bytes == 2 * models.shares.gradient_bytes + 8
    models.offload.close()
    tight = watch(offloads=True, memory_bytes=2**20, directory=str(tmp_path))
    with pytest.raises(ProcessMemoryError, match=r"optimizer states 2\.0 MiB"):
        nn.Sequential(net)(torch.ones(1024, 512))
    tight.uninstall()


def test_steps_are_reported_while_the_script_runs(watch, tmp_path, capsys) -> None:
    models = watch(report=str(tmp_path / "out.html"))
    net = nn.Linear(4, 4)
    for _ in range(250):
        net(torch.ones(2, 4)).sum().backward()
    lines = (tmp_path / "out.html.steps.jsonl").read_text().splitlines()
    assert [json.loads(each)["step"] for each in lines] == [100, 200]
    assert all(json.loads(each)["resident_bytes"] > 0 for each in lines)
    models.step_reports = StepReports(tmp_path / "nowhere" / "steps", 1)
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()  # goes on
    assert capsys.readouterr().err.count("no more steps are reported") == 1


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
