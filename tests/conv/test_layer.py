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


# PyTorch's table of modules has no error inputs of convolutions: these are what its constructors and
# calls refuse. (constructor's arguments, its keywords, the image's shape and dtype where it is called)
ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
    "groups that do not divide the inputs": ((4, 6, 3), {"groups": 3}, None),
    "groups that do not divide the outputs": ((6, 4, 3), {"groups": 3}, None),
    "no groups": ((4, 4, 3), {"groups": 0}, None),
    "fewer groups than none": ((4, 4, 3), {"groups": -2}, None),
    "an unknown padding": ((4, 4, 3), {"padding": "full"}, None),
    "same padding with a step": ((4, 4, 3), {"padding": "same", "stride": 2}, None),
    "an unknown padding mode": ((4, 4, 3), {"padding_mode": "mirror"}, None),
    "other channels": ((4, 4, 3), {}, ((2, 3, 9, 9, 9), torch.float32)),
    "a kernel that does not fit": ((4, 4, 5), {}, ((2, 4, 3, 3, 3), torch.float32)),
    "one dimension too few": ((4, 4, 3), {}, ((9, 9), torch.float32)),
    "one dimension too many": ((4, 4, 3), {}, ((1, 2, 4, 9, 9, 9), torch.float32)),
    "another dtype": ((4, 4, 3), {}, ((2, 4, 9, 9, 9), torch.float64)),
    "whole numbers": ((4, 4, 3), {}, ((2, 4, 9, 9, 9), torch.int64)),
    "a negative padding": ((4, 4, 3), {"padding": -1}, ((2, 4, 9, 9, 9), torch.float32)),
    "no step": ((4, 4, 3), {"stride": 0}, ((2, 4, 9, 9, 9), torch.float32)),
    "no dilation": ((4, 4, 3), {"dilation": 0}, ((2, 4, 9, 9, 9), torch.float32)),
    "reflection beyond the image": (
        (4, 4, 3), {"padding": 9, "padding_mode": "reflect"}, ((2, 4, 9, 9, 9), torch.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("what", ERRORS)
def test_what_modules_of_torch_refuse_is_refused_at_the_same_place(
    what: str, kind: type[nn.Module]
) -> None:
    given, options, called = ERRORS[what]

    def use(layer: Any) -> None:
        made = layer(*given, **options)
        if called is not None:
            shape, dtype = called
            lost = 3 - LAYERS[kind].dimensions if len(shape) > 4 else 0
            made(torch.ones(shape[: len(shape) - lost], dtype=dtype))

    with pytest.raises((RuntimeError, ValueError)) as expected:
        use(kind)
    with pytest.raises(expected.type) as got:
        use(LAYERS[kind])
    is_called = [
        any("_call_impl" in str(each) for each in one.traceback) for one in (expected, got)
    ]
    assert is_called[0] == is_called[1] == (called is not None)


def test_every_layer_has_samples() -> None:
    assert {each.module_cls for each in INFOS} == set(LAYERS)
    assert not any(each.module_error_inputs_func for each in INFOS)  # else they are to be run


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
