"""Convolutions replaced in whole models, and put back."""

import copy
import io
import json
import pickle
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from shorthaul.conv.execution.plan import forget_plans
from shorthaul.conv.layer import Conv2d
from shorthaul.conv.models.replace import replace_convs
from shorthaul.errors import ConvolutionError
from shorthaul.jit import Candidate, Choice
from shorthaul.meter import meter
from shorthaul.settings import settings
from tests.conv.tolerances import require_close


class Residual(nn.Module):
    """A small residual network with what models have: names, sharing, a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.left = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.again = self.left  # shared
        self.pointwise = nn.Conv2d(8, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = self.stem(image)
        image = self.norm(self.again(self.left(image))) + image
        return self.pointwise(image)


class _Recorded(TorchDispatchMode):
    """Names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names.append(str(function))
        return function(*arguments, **(named or {}))


def _model() -> tuple[Residual, torch.Tensor]:
    torch.manual_seed(0)
    model = Residual()
    image = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        model(image)  # gives the batch norms something to remember
    return model.eval(), image


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("policy", ["auto", "always"])
def test_the_model_computes_the_same_and_comes_back(policy: str, fold: bool) -> None:
    model, image = _model()
    expected, state = (
        model(image),
        {name: each.clone() for name, each in model.state_dict().items()},
    )
    kinds = [type(each) for each in model.modules()]
    parameters = list(model.parameters())
    report = replace_convs(model, policy=policy, fold=fold)
    require_close(model(image), expected)
    with torch.no_grad():
        require_close(model(image), expected)
    assert [each.name for each in report.layers] == ["stem.0", "left", "pointwise"]
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert model.state_dict().keys() == state.keys()
    model.load_state_dict(state)
    report.revert()
    report.revert()
    assert [type(each) for each in model.modules()] == kinds
    assert torch.equal(model(image), expected)


def test_training_goes_on_after_folding() -> None:
    model, image = _model()
    other = copy.deepcopy(model)
    replace_convs(model, policy="always", fold=True)
    for each in (model, other):
        each.train()
        each(image).pow(2).sum().backward()
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        largest = max(float(two.grad.abs().max()), 1e-3)  # a bias before a norm has gradient zero
        assert float((one.grad - two.grad).abs().max()) < 1e-4 * largest, name
    model.eval()
    other.eval()
    require_close(model(image), other(image), 1e-4)


def test_a_fold_is_told_and_measured() -> None:
    model, image = _model()
    report = replace_convs(model, fold=True, example=image)
    notes = {each.name: each.note for each in report.layers}
    assert notes["stem.0"] == "batch norm stem.1 and activation stem.2 folded in eval mode"
    assert notes["left"] == ""  # called twice
    for each in report.layers:
        assert each.choices["inference"].origin in ("measured", "remembered")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table(details=True))
    text = console.export_text()
    assert "stem.0" in text
    assert "times faster" in text
    assert "KiB" in text
    assert report.layers[0].problem is not None
    assert report.layers[0].problem.activation == "relu"


def test_what_was_measured_is_remembered() -> None:
    model, image = _model()
    again = copy.deepcopy(model)
    with settings.override(autotune="force"):
        first = replace_convs(model, example=image)
    second = replace_convs(again, example=image)
    for one, two in zip(first.layers, second.layers, strict=True):
        assert one.choices["inference"].origin == "measured"
        assert two.choices["inference"].origin == "remembered"
        assert one.choices["inference"].name == two.choices["inference"].name


def _per_sample(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(torch.func.grad(lambda image: model(image).square().sum()))(images)


@pytest.mark.parametrize("compiling", ["wait", "background"])
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda m, x: torch.func.grad(lambda x: m(x).square().sum())(x), id="grad"),
        pytest.param(_per_sample, id="vmap(grad)"),
        pytest.param(lambda m, x: torch.func.jvp(m, (x,), (x + 1,))[1], id="jvp"),
        pytest.param(
            lambda m, x: torch.jit.trace(m, x, check_trace=False)(x), id="torch.jit.trace"
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # what the tracer says of sizes, and torch of its own tracer
def test_a_first_call_that_is_watched_measures_nothing(call: Any, compiling: str) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1))
    images = torch.randn(2, 3, 8, 8)
    expected = call(plain, images)
    replace_convs(copy.deepcopy(plain), example=images)  # its kernels are there
    report = replace_convs(copy.deepcopy(plain))
    forget_plans()
    with settings.override(autotune="force", compiling=compiling):
        require_close(call(report.model, images), expected)
        assert not report.layers[0].choices
        # What is kept of the call does for an ordinary one.
        require_close(report.model(images), plain(images))
        assert report.layers[0].problem is not None


@pytest.mark.parametrize("compiling", ["wait", "background"])
def test_a_first_call_of_fake_tensors_is_not_the_layers_first(compiling: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1))
    images = torch.randn(2, 3, 8, 8)
    expected = model(images)
    report = replace_convs(model)
    forget_plans()
    with settings.override(autotune="force", compiling=compiling):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert model(mode.from_tensor(images)).shape == expected.shape
        assert model(mode.from_tensor(images)).shape == expected.shape  # outside of the mode
        with _Recorded() as recorded:
            output = model(images)
        require_close(output, expected)
        assert len(recorded.names) <= 4  # the convolution between two views: nothing is measured
        assert not report.layers[0].choices
        require_close(model(images), expected)


def test_modes_are_kept_by_an_example() -> None:
    model, image = _model()
    model.train()
    model.norm.eval()
    before = model.norm.running_mean.clone()
    replace_convs(model, example=(image,))
    assert model.training
    assert model.stem[1].training
    assert not model.norm.training
    assert torch.equal(model.norm.running_mean, before)


def test_hooks_are_kept() -> None:
    model, image = _model()
    seen: list[str] = []
    model.left.register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    replace_convs(model, policy="always")
    model(image)
    assert seen == ["ReplacedConv2d"] * 2


def test_others_are_left_alone_with_a_reason() -> None:
    class Special(nn.Conv2d):
        pass

    model = nn.Sequential(
        Special(3, 3, 1), Conv2d(3, 3, 1), nn.ConvTranspose2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    )
    report = replace_convs(model, policy="always")
    assert report.left_alone == {
        "0": "Special is a subclass, which may compute something else",
        "1": "is shorthaul's already",
        "2": "transposed convolutions stay with ATen; `sh.conv_transpose2d` computes them",
    }
    assert [each.name for each in report.layers] == ["3"]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table())
    assert console.export_text().count("left alone") == 1 + 3  # summed up, then one by one
    assert json.loads(json.dumps(report.to_dict()))["left_alone"] == report.left_alone


def test_a_model_that_is_itself_a_convolution() -> None:
    layer = nn.Conv1d(3, 4, 3)
    sequence = torch.randn(2, 3, 9)
    expected = layer(sequence)
    replace_convs(layer, policy="always")
    require_close(layer(sequence), expected)
    assert isinstance(layer, nn.Conv1d)


def test_copies_and_pickles_of_replaced_models() -> None:
    model, image = _model()
    replace_convs(model, policy="always", fold=True)
    expected = model(image)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        require_close(other(image), expected)
        other.stem[1].running_mean += 1  # the copy folds its own batch norm
        assert not torch.allclose(other(image), expected)
        require_close(model(image), expected)


def test_compiled_whole() -> None:
    torch._dynamo.reset()
    model, image = _model()
    expected = model(image)
    replace_convs(model, fold=True, example=image)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        require_close(compiled(image), expected)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConvolutionError, match="policy must be one of auto, always, got 'never'"):
        replace_convs(nn.Conv2d(1, 1, 1), policy="never")


def test_a_wrong_input_gets_the_error_of_the_convolution() -> None:
    model = nn.Conv2d(3, 4, 3)
    replace_convs(model)
    with pytest.raises(ConvolutionError, match="to have 3 channels, but got 2 channels instead"):
        model(torch.zeros(1, 2, 5, 5))


def prefer_by_height(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let comparisons end so that small images are ours, and others ATen's."""

    def compare(key: str, candidates: list[Candidate], **_: object) -> Choice:
        wanted = "window order" if " 2x1x8x8 " in key else "aten"
        assert wanted in [each.name for each in candidates]
        return Choice(wanted, "measured", {"window order": 1.0, "aten": 2.0})

    monkeypatch.setattr("shorthaul.conv.models.replaced_layer.autotune", compare)


def test_images_of_other_sizes_are_decided_for_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_by_height(monkeypatch)
    model = nn.Sequential(nn.Conv2d(3, 8, 3)).eval().requires_grad_(False)
    report = replace_convs(model)
    for height, is_ours in ((8, True), (30, False), (7, True), (8, True), (30, False)):
        with meter() as counted:
            model(torch.randn(2, 3, height, 8))
        assert bool(counted.launches) == is_ours
    (layer,) = report.layers
    assert layer.choices["inference"].name == "window order"
    assert layer.describe_choice() == ("window order or aten", "2.00")
    assert layer.is_ours("inference")


def test_a_layer_is_described_as_autocast_has_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3)).eval()
    report = replace_convs(model, policy="always")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(2, 3, 8, 8)).dtype == torch.bfloat16
    assert report.layers[0].problem is not None
    assert report.layers[0].problem.dtype == torch.bfloat16
