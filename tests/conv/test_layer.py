"""`sh.Conv*d` are `nn.Conv*d`: same parameters, same values, same samples."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import module_db

from shorthaul.conv.layer import Conv1d, Conv2d, Conv3d
from shorthaul.errors import ConvolutionError
from tests.conv.tolerances import require_close

LAYERS: dict[type[nn.Module], Any] = {nn.Conv1d: Conv1d, nn.Conv2d: Conv2d, nn.Conv3d: Conv3d}
INFOS = [each for each in module_db if each.module_cls in LAYERS]


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.module_cls.__name__)
def test_all_module_samples_of_torch(info: Any, dtype: torch.dtype) -> None:
    samples = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=True
    )
    assert len(samples) >= 4
    for sample in samples:
        made = (sample.constructor_input.args, sample.constructor_input.kwargs)
        theirs = info.module_cls(*made[0], **made[1]).to(dtype)
        ours = LAYERS[info.module_cls](*made[0], **made[1]).to(dtype)
        ours.load_state_dict(theirs.state_dict())
        image = sample.forward_input.args[0]
        expected, got = theirs(image), ours(image)
        gradient = torch.randn_like(expected)
        pairs = zip(
            (got, *torch.autograd.grad(got, (image, *ours.parameters()), gradient)),
            (expected, *torch.autograd.grad(expected, (image, *theirs.parameters()), gradient)),
            strict=True,
        )
        for one, other in pairs:
            require_close(one, other)


def test_every_layer_has_samples() -> None:
    assert {each.module_cls for each in INFOS} == set(LAYERS)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_modes_of_torch(mode: str) -> None:
    theirs = nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode=mode)
    ours = Conv2d(3, 4, 3, padding=(1, 2), padding_mode=mode)
    ours.load_state_dict(theirs.state_dict())
    image = torch.randn(2, 3, 6, 6)
    require_close(ours(image), theirs(image))


def test_padding_that_torch_has_not() -> None:
    layer = Conv2d(1, 1, 3, padding=((0, 2), (1, 0)), padding_mode="symmetric", bias=False)
    assert layer.padding == ((0, 2), (1, 0))
    image = torch.randn(1, 1, 4, 5)
    padded = torch.cat([image, image.flip(2)[:, :, :2]], dim=2)
    padded = torch.cat([padded[..., :1], padded], dim=3)
    require_close(layer(image), torch.conv2d(padded, layer.weight))
    assert "padding=((0, 2), (1, 0))" in repr(layer)


def test_same_padding_in_a_mode_that_torch_has_not() -> None:
    layer = Conv1d(1, 1, 4, padding="same", padding_mode="symmetric")
    assert layer.padding == ((1, 2),)
    assert layer(torch.randn(1, 1, 9)).shape == (1, 1, 9)


def test_what_it_says_of_itself() -> None:
    layer = Conv2d(3, 4, 3, activation="relu", exact=False)
    assert repr(layer) == (
        "Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), activation=relu, exact=False)"
    )
    assert repr(Conv2d(3, 4, 3)) == repr(nn.Conv2d(3, 4, 3))


def test_activation_is_applied() -> None:
    layer = Conv2d(3, 4, 3, activation="relu")
    image = torch.randn(1, 3, 6, 6)
    require_close(layer(image), torch.conv2d(image, layer.weight, layer.bias).relu())


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConvolutionError, match="activation must be None or one of relu"):
        Conv2d(3, 4, 3, activation="mish")


def test_copies_and_pickles_compute_the_same() -> None:
    layer = Conv2d(3, 4, 3, padding=((0, 1), (1, 1)), activation="relu")
    image = torch.randn(1, 3, 6, 6)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(image), layer(image))


def test_channels_last_models_stay_so() -> None:
    layer = Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    assert layer(torch.randn(1, 3, 6, 6)).is_contiguous(memory_format=torch.channels_last)


def test_compiled_whole() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(Conv2d(3, 4, 3, padding="same", activation="relu"), Conv2d(4, 2, 1))
    image = torch.randn(1, 3, 6, 6)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    require_close(compiled(image), model(image))
