"""Batch norm and activation folded into convolutions, found in graphs and in sequentials."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shorthaul.conv.execution import packing
from shorthaul.conv.execution.packing import pack_panels
from shorthaul.conv.models.fold import (
    Fold,
    find_folds,
    fold_away,
    fold_batch_norm,
    name_of,
    restore,
)
from shorthaul.conv.models.replace import replace_convs
from shorthaul.errors import ConvolutionError
from tests.conv.tolerances import require_close


def _trained_norm(channels: int, **options: bool) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels, **options)
    norm(torch.randn(8, channels, 4, 4) * 3 + 1)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm.eval()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_folded_weights_compute_both(affine: bool, has_bias: bool) -> None:
    norm = _trained_norm(5, affine=affine)
    conv = nn.Conv2d(3, 5, 3, bias=has_bias)
    image = torch.randn(2, 3, 6, 6)
    weight, bias = fold_batch_norm(norm, conv.weight, conv.bias)
    require_close(torch.conv2d(image, weight, bias), norm(conv(image)))


class TestFinding:
    def test_in_a_graph(self) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
                self.second, self.other = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
                self.relu = nn.ReLU()

            def forward(self, image: torch.Tensor) -> torch.Tensor:
                image = self.relu(self.norm(self.first(image)))
                return self.relu(self.other(self.second(image)) + image)

        # The one relu is called twice, so it cannot belong to a single convolution.
        assert find_folds(Block()) == {"first": ("norm", None), "second": ("other", None)}

    def test_in_sequentials_of_a_model_that_cannot_be_traced(self) -> None:
        class Untraceable(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.Sequential(
                    nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.ReLU()
                )

            def forward(self, image: torch.Tensor) -> torch.Tensor:
                return self.body(image) if image.sum() > 0 else image

        assert find_folds(Untraceable()) == {
            "body.0": ("body.1", "body.2"),
            "body.3": (None, "body.4"),
        }

    def test_in_every_forward_of_a_model_that_cannot_be_traced(self) -> None:
        class Layer(nn.Module):
            def __init__(self, norm: nn.Module) -> None:
                super().__init__()
                self.conv, self.norm, self.act = nn.Conv2d(4, 4, 1), norm, nn.ReLU()

            def forward(self, image: torch.Tensor) -> torch.Tensor:
                return self.act(self.norm(self.conv(image)))

        class Past(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = Layer(nn.BatchNorm2d(4))

            def forward(self, image: torch.Tensor) -> torch.Tensor:
                return self.layer.conv(image)

        class Untraceable(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                shared = nn.BatchNorm2d(4)
                self.first, self.second = Layer(nn.BatchNorm2d(4)), Layer(shared)
                self.third, self.fourth = Layer(shared), Past()

            def forward(self, image: torch.Tensor) -> torch.Tensor:
                image = self.fourth(image) if image.shape[0] > 1 else image
                return self.third(self.second(self.first(image)))

        # The norm of two layers, and the convolution that is called past its layer, stay as they are.
        assert find_folds(Untraceable()) == {"first.conv": ("first.norm", "first.act")}

    @pytest.mark.parametrize(
        "second",
        [
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.LayerNorm(4),
            nn.GELU(approximate="tanh"),
            nn.LeakyReLU(),
        ],
    )
    def test_not_what_cannot_be_folded(self, second: nn.Module) -> None:
        assert find_folds(nn.Sequential(nn.Conv2d(3, 4, 3), second)) == {}

    def test_not_what_has_hooks(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        model[0].register_forward_hook(lambda *_: None)
        assert find_folds(model) == {}

    def test_not_what_others_use_too(self) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

            def forward(self, image: torch.Tensor) -> torch.Tensor:
                value = self.conv(image)
                return self.norm(value) + value

        assert find_folds(Twice()) == {}


def _fold_both() -> tuple[nn.Module, nn.Module, Fold]:
    norm, relu = _trained_norm(5), nn.ReLU()
    fold = Fold(norm, relu)
    fold_away(norm, fold)
    fold_away(relu, fold)
    return norm, relu, fold


class PaddedBySize(nn.Module):
    """Pads by the size it sees, as MobileNets do; above `limit` pixels it leaves out its norm."""

    def __init__(self, channels: int, limit: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 4, 3, stride=2), _trained_norm(4)
        self.act, self.limit = nn.ReLU6(), limit

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[-2:]
        pads = [2 if size % 2 else 1 for size in (width, height)]
        image = self.conv(nn.functional.pad(image, (0, pads[0], 0, pads[1])))
        return self.act(self.norm(image)) if image_fits(height, self.limit) else image


def image_fits(size: int, limit: int) -> bool:
    return size <= limit


class TestFindingBySizes:
    def test_an_example_gives_the_sizes_that_a_forward_asks_for(self) -> None:
        model = nn.Sequential(PaddedBySize(3, 1000), PaddedBySize(4, 20)).eval()
        image = torch.randn(2, 3, 21, 32)
        assert find_folds(model) == {}
        # The second one's path depends on them: not for the example's, but for larger ones.
        found = find_folds(model, lambda: model(image))
        assert found == {"0.conv": ("0.norm", "0.act")}

    def test_only_where_they_are_always_the_same(self) -> None:
        model = nn.Sequential(PaddedBySize(3, 1000)).eval()

        def call_twice() -> None:
            for size in (20, 24):
                model(torch.randn(1, 3, size, size))

        assert find_folds(model, call_twice) == {}

    def test_replaced_it_computes_the_same_at_other_sizes(self) -> None:
        model = nn.Sequential(PaddedBySize(3, 1000)).eval()
        images = [torch.randn(2, 3, size, size + 3) for size in (20, 33)]
        expected = [model(each) for each in images]
        report = replace_convs(model, policy="always", fold=True, example=images[0])
        assert "folded" in report.layers[0].note
        for image, result in zip(images, expected, strict=True):
            require_close(model(image), result)


def test_work_is_passed_on_in_eval_mode_only() -> None:
    norm, relu, fold = _fold_both()
    image = torch.randn(2, 5, 3, 3)
    assert relu(norm(fold.mark(image))) is image
    assert not vars(image)
    assert name_of(relu) == fold.activation_name == "relu"
    norm.train()
    assert not torch.equal(norm(image), image)
    assert relu(image).min() == 0
    restore(norm.eval())
    restore(relu)
    assert type(norm) is nn.BatchNorm2d
    assert type(relu) is nn.ReLU


def test_what_the_convolution_did_not_make_is_refused() -> None:
    norm, relu, fold = _fold_both()
    image = torch.randn(2, 5, 3, 3)
    with pytest.raises(ConvolutionError, match="takes another path"):
        norm(image)
    with pytest.raises(ConvolutionError, match="takes another path"):
        relu(fold.mark(image) + 1)


def test_a_convolution_that_is_compiled_alone_is_trusted() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), _trained_norm(5), nn.ReLU()).eval()
    image = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        expected = model(image)
        replace_convs(model, policy="always", fold=True)
        require_close(model(image), expected)
        model[0].compile(backend="eager")
        require_close(model(image), expected)


def test_folded_weights_follow_changes() -> None:
    norm, conv = _trained_norm(5), nn.Conv2d(3, 5, 3)
    fold = Fold(norm, None)
    with torch.no_grad():
        first = fold.apply(conv.weight, conv.bias)
        assert fold.apply(conv.weight, conv.bias)[0] is first[0]
        norm.running_mean += 1
        second = fold.apply(conv.weight, conv.bias)
        assert not torch.equal(first[1], second[1])
        conv.weight.mul_(2)
        require_close(fold.apply(conv.weight, conv.bias)[0], 2 * second[0])


def test_gradients_reach_the_weight_and_the_norm() -> None:
    norm, conv = _trained_norm(5), nn.Conv2d(3, 5, 3)
    weight, bias = Fold(norm, None).apply(conv.weight, conv.bias)
    (weight.sum() + bias.sum()).backward()
    assert all(each.grad is not None for each in (*norm.parameters(), *conv.parameters()))


@pytest.mark.parametrize("part", ["conv.weight", "conv.bias", "norm.weight", "norm.running_var"])
def test_writes_through_data_are_folded_anew(part: str) -> None:
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 5, 3), "norm": _trained_norm(5)})
    conv, norm = model["conv"], model["norm"]
    fold = Fold(norm, None)
    with torch.no_grad():
        before = fold.apply(conv.weight, conv.bias)
        assert fold.apply(conv.weight, conv.bias) is before
        dict([*model.named_parameters(), *model.named_buffers()])[part].data.mul_(2)
        after = fold.apply(conv.weight, conv.bias)
        expected = fold_batch_norm(norm, conv.weight, conv.bias)
    assert after is not before
    for one, other in zip(after, expected, strict=True):
        assert torch.equal(one, other)


def test_inference_tensors_are_folded_at_every_call() -> None:
    with torch.inference_mode():
        norm = _trained_norm(5)
        weight = torch.randn(5, 3, 3, 3)
        fold = Fold(norm, None)
        fold.apply(weight, None)
        weight.mul_(2)
        expected, _ = fold_batch_norm(norm, weight, None)
        assert torch.equal(fold.apply(weight, None)[0], expected)


class TestKeptWeights:
    """Folded weights are kept as long as nothing that they are made of changes, in every mode."""

    def _model(self, channels: int = 3) -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(channels, 8, 3), _trained_norm(8), nn.ReLU()).eval()
        replace_convs(model, policy="always", fold=True)
        return model

    @pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
    def test_they_are_made_and_packed_once(
        self, mode: type[torch.no_grad], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, image = self._model(), torch.randn(2, 3, 6, 6)
        packed: list[torch.dtype] = []

        def pack(*arguments: Any) -> torch.Tensor:
            packed.append(arguments[-1])
            return pack_panels(*arguments)

        monkeypatch.setattr(packing, "pack_panels", pack)
        with mode():
            first = model(image)
            made = len(packed)
            assert torch.equal(model(image), first)
            assert torch.equal(model(image), first)
        assert made > 0
        assert len(packed) == made

    def test_made_in_inference_mode_they_serve_training(self) -> None:
        model = self._model().requires_grad_(False)
        image = torch.randn(2, 3, 6, 6)
        with torch.inference_mode():
            expected = model(image)
        output = model(image.requires_grad_())
        assert torch.equal(output, expected)
        output.sum().backward()
        assert image.grad is not None

    @pytest.mark.parametrize("channels", [3, 96])  # weights that are compared, and hashed
    @pytest.mark.parametrize(
        "change",
        [
            lambda conv, _: conv.weight.data.view(-1)[17].add_(3),
            lambda conv, _: conv.bias.data[7].add_(3),
            lambda _, norm: norm.weight.data[7].add_(3),
            lambda _, norm: norm.running_var.data[5].add_(3),
            lambda _, norm: norm.running_mean.numpy().__setitem__(2, 9.0),
            lambda _, norm: setattr(norm, "eps", 0.5),
        ],
    )
    @pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
    def test_any_change_is_noticed(
        self,
        channels: int,
        change: Callable[[Any, Any], object],
        mode: type[torch.no_grad],
    ) -> None:
        model, image = self._model(channels), torch.randn(2, channels, 6, 6)
        with mode():
            before = model(image)
            change(model[0], model[1])
            norm, conv = model[1], model[0]
            plain = torch.conv2d(image, conv.weight, conv.bias)
            expected = torch.nn.functional.batch_norm(
                plain, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            ).relu()
            require_close(model(image), expected)
        assert not torch.equal(before, expected)

    def test_under_vmap_over_models(self) -> None:
        model, image = self._model(), torch.randn(2, 3, 6, 6)
        stacked = {name: torch.stack((each, 2 * each)) for name, each in model.named_parameters()}

        def run(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            output: torch.Tensor = torch.func.functional_call(model, parameters, (image,))
            return output

        with torch.no_grad():
            got = torch.func.vmap(run)(stacked)
            for index in range(2):
                require_close(got[index], run({n: each[index] for n, each in stacked.items()}))
