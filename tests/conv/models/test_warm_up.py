"""Models warmed up: everything compiled and decided, nothing else changed, and the whole reverted where it lost."""

from __future__ import annotations

import collections
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import shorthaul as sh
from shorthaul.conv.models import warm_up as module
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.jit import Choice
from shorthaul.jit.compiling.loading import wait_for_compilers
from shorthaul.meter import meter
from tests.conv.nothing_compiled import nothing_compiled
from tests.conv.tolerances import require_close


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    with nothing_compiled(tmp_path):
        yield tmp_path


def _model() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(),
        nn.Conv2d(8, 19, 3),
    )
    return model, torch.randn(2, 3, 9, 10)


def _prefer(name: str, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> list[str]:
    """Let the comparison of whole models end like this; returns what it was asked for."""
    asked = []

    def compare(key: str, candidates: list, **_: object) -> Choice:
        asked.append(key)
        for each in candidates:
            each.run()
        return Choice(name, "measured", seconds)

    monkeypatch.setattr(module, "autotune", compare)
    return asked


@pytest.mark.parametrize("is_training", [False, True])
def test_the_first_call_compiles_nothing(gate: Path, is_training: bool) -> None:
    model, image = _model()
    model.train(is_training)
    sh.replace_convs(model, policy="always")
    report = sh.warm_up(model, image, compare=False)
    assert report.mode == ("training" if is_training else "inference")
    assert "conv_window_general" in report.compiled or "conv_planar" in " ".join(report.compiled)
    with meter() as counted:
        if is_training:
            model(image).sum().backward()
        else:
            with torch.no_grad():
                model(image)
        wait_for_compilers()
    assert not counted.compiles
    assert any(name.startswith("conv_") for name in counted.launches)
    assert sh.warm_up(model, image, compare=False).compiled == ()


def test_nothing_else_changes() -> None:
    model, image = _model()
    sh.replace_convs(model)
    model[0].eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    random = torch.get_rng_state()
    sh.warm_up(model, image, is_training=True, compare=False)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())
    assert not model[0].training
    assert model[1].training


def test_an_error_leaves_the_model_as_it_was() -> None:
    model, _ = _model()
    sh.replace_convs(model)
    with pytest.raises(Exception, match="channels"):
        sh.warm_up(model, torch.randn(1, 4, 9, 9), is_training=False)
    assert model.training


@pytest.mark.parametrize("fold", [False, True])
def test_a_model_that_lost_as_a_whole_is_reverted_in_this_mode(
    monkeypatch: pytest.MonkeyPatch, fold: bool
) -> None:
    model, image = _model()
    model.eval()
    with torch.no_grad():
        plain = model(image)
    report = sh.replace_convs(model, policy="always", fold=fold)
    asked = _prefer("original", monkeypatch, original=1.0, replaced=1.25)
    warmed = sh.warm_up(model, image)
    assert len(asked) == 1
    assert warmed.is_reverted
    assert warmed.times_faster == 0.8
    with torch.no_grad(), meter() as counted:
        assert torch.equal(model(image), plain)
    assert not counted.launches
    with meter() as counted:
        require_close(model(image), plain.double())
    assert counted.launches  # training, as far as gradients go, was not compared
    note = next(each for each in taken_fallbacks() if each.what == "Sequential in inference")
    assert note.instead == "its own convolutions"
    shown = io.StringIO()
    Console(file=shown, width=240).print(report.table())
    assert (
        shown.getvalue().count("aten in inference: the whole model was slower") == 3
    )  # and above the table


def test_a_model_that_won_stays_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = _model()
    sh.replace_convs(model.eval(), policy="always", fold=True)
    _prefer("replaced", monkeypatch, original=1.5, replaced=1.0)
    warmed = sh.warm_up(model, image)
    assert not warmed.is_reverted
    assert warmed.times_faster == 1.5
    with torch.no_grad(), meter() as counted:
        model(image)
    assert counted.launches


def test_the_two_ways_that_are_compared_are_the_two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = _model()
    sh.replace_convs(model.eval(), policy="always")
    launches = {}

    def compare(key: str, candidates: list, **_: object) -> Choice:
        for each in candidates:
            with meter() as counted:
                each.run()
            launches[each.name] = sum(counted.launches.values())
        return Choice("replaced", "measured")

    monkeypatch.setattr(module, "autotune", compare)
    assert sh.warm_up(model, image).times_faster is None
    assert launches["replaced"] > 0
    assert launches["original"] == 0


def test_a_model_without_replaced_layers_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = _model()
    asked = _prefer("original", monkeypatch)
    assert sh.warm_up(model, (image,)).choice is None
    assert asked == []


class Named(nn.Module):
    """A model that is called as those of Hugging Face are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.image = _model()

    def forward(self, *, pixel_values: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        return {"logits": self.layers(pixel_values) * scale}


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("kind", [dict, collections.UserDict])
def test_an_example_by_names(kind: type, is_training: bool) -> None:
    model = Named()
    example = kind({"pixel_values": model.image, "scale": 2.0})
    report = sh.replace_convs(model, policy="always", example=example)
    assert all(each.problem is not None for each in report.layers)
    warmed = sh.warm_up(model, example, is_training=is_training)
    assert warmed.choice is not None


def test_a_comparison_holds_for_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """By policy, layout, autocast, and what the layers chose: another one is measured anew."""
    asked = _prefer("replaced", monkeypatch)
    last = torch.channels_last
    for policy in ("always", "auto"):
        model, image = _model()
        report = sh.replace_convs(model.eval(), policy=policy)
        sh.warm_up(model, image)
        sh.warm_up(model, image)  # the same again
        report.revert()
        sh.replace_convs(model, policy=policy)
        sh.warm_up(model, image.to(memory_format=last))
        with torch.autocast("cpu", torch.bfloat16):
            model, image = _model()
            sh.replace_convs(model.eval(), policy=policy)
            sh.warm_up(model, image)
    always, auto = asked[:4], asked[4:]
    assert always[0] == always[1]
    assert len({*always}) == 3
    assert not {*always} & {*auto}
