"""Steps of training by addresses: the results and gradients of the operators, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

import shorthaul as sh
from shorthaul.conv.execution import training as trained_calls
from shorthaul.conv.execution.plan import forget_plans
from shorthaul.jit.runtime import limited_threads
from tests.conv.problems import Case, cases
from tests.conv.tolerances import require_close

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: sh.conv1d, 2: sh.conv2d, 3: sh.conv3d}

CASES = {
    "plain": ((2, 5, 9, 8), (7, 5, 3, 3), {"padding": 1}),
    "strided": ((2, 4, 11, 10), (6, 4, 3, 3), {"stride": 2, "padding": (1, 2)}),
    "uncovered": ((1, 3, 9, 9), (4, 3, 1, 1), {"stride": 2}),
    "grouped": ((2, 6, 7, 9), (9, 2, 3, 3), {"groups": 3, "dilation": 2, "padding": 2}),
    "depthwise": ((2, 20, 8, 7), (20, 1, 3, 3), {"groups": 20, "padding": "same"}),
    "bundled": ((2, 32, 56, 56), (32, 8, 3, 3), {"groups": 4, "padding": 1}),
    "unbatched": ((3, 8, 9), (4, 3, 3, 3), {"padding": 1}),
    "sequence": ((2, 3, 30), (5, 3, 4), {"stride": 2}),
    "depthwise sequence": ((2, 6, 30), (6, 1, 4), {"groups": 6}),
    "volume": ((1, 3, 5, 6, 7), (4, 3, 2, 3, 3), {"padding": 1}),
    "activated": ((2, 3, 6, 6), (4, 3, 3, 3), {"activation": "silu"}),
}
# PyTorch's own "same" padding warns about a copy that ours does not make.
SAME_WARNING = "ignore:Using padding='same' with even kernel lengths:UserWarning"
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    forget_plans()
    yield
    forget_plans()


def forbid_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever is not known already fail."""

    def refuse(*_: Any) -> None:
        raise AssertionError("went through an operator")

    for name in ("convolution_grad_input", "convolution_grad_weight", "convolution_grad_bias"):
        monkeypatch.setattr(trained_calls, name, refuse)
    monkeypatch.setattr("shorthaul.conv.functional._convolve", refuse)


def make_tensors(
    image: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, *, is_last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in (image, weight, weight[:1])
    ]
    if is_last and len(image) in LAYOUTS and len(image) == len(weight):
        made[:2] = [each.to(memory_format=LAYOUTS[len(image)]) for each in made[:2]]
    first, second, third = (each.requires_grad_() for each in made)
    return first, second, third


def run_step(convolve: Callable[..., Tensor], tensors: tuple[Tensor, ...], **options: Any) -> Any:
    output = convolve(*tensors, **options)
    return output, *torch.autograd.grad(output, tensors, make_gradient(output))


def make_gradient(output: Tensor) -> Tensor:
    values = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).reshape(output.shape)
    return values.to(output.dtype)


@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_known_step_is_the_first_one_bit_by_bit(
    case: str, dtype: torch.dtype, is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, weight, options = CASES[case]
    tensors = make_tensors(image, weight, dtype, is_last=is_last)
    convolve = CONVOLUTIONS[len(weight) - 2]
    first = run_step(convolve, tensors, **options)
    forbid_operators(monkeypatch)
    again = run_step(convolve, tensors, **options)
    for before, after in zip(first, again, strict=True):
        assert torch.equal(before, after)
    assert again[0].stride() == first[0].stride()


@given(cases(is_quick=True))
@settings(deadline=None, max_examples=60)
def test_every_drawn_step_is_the_first_one_bit_by_bit(case: Case) -> None:
    image, weight, bias = case.tensors()
    problem = case.problem
    options = {
        "stride": problem.stride,
        "padding": problem.padding,
        "dilation": problem.dilation,
        "groups": problem.groups,
        "padding_mode": problem.padding_mode,
    }
    tensors = tuple(each.requires_grad_() for each in (image, weight, bias) if each is not None)
    forget_plans()
    first = run_step(sh.conv3d, tensors, **options)
    for before, after in zip(first, run_step(sh.conv3d, tensors, **options), strict=True):
        assert torch.equal(before, after)


@pytest.mark.filterwarnings(SAME_WARNING)
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d"])
def test_known_steps_of_all_samples_of_torch(name: str) -> None:
    info = next(each for each in op_db if each.name == f"nn.functional.{name}")
    for sample in info.sample_inputs("cpu", torch.float64, requires_grad=True):
        arguments = (sample.input, *sample.args)
        leaves = [each for each in arguments if isinstance(each, Tensor)]
        expected = info.op(*arguments, **sample.kwargs)
        gradient = make_gradient(expected)
        for _ in range(2):
            output = getattr(sh, name)(*arguments, **sample.kwargs)
            found = torch.autograd.grad(output, leaves, gradient)
        require_close(output, expected)
        for got, wanted in zip(found, torch.autograd.grad(expected, leaves, gradient), strict=True):
            require_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_go_on_through_operators(dtype: torch.dtype) -> None:
    tensors = make_tensors((2, 5, 9, 8), (7, 5, 3, 3), dtype, is_last=True)
    first, again = (run_step(sh.conv2d, tensors, padding=1) for _ in range(2))
    for before, after in zip(first, again, strict=True):
        assert torch.equal(before, after)


def test_without_a_bias_and_with_a_frozen_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    image, weight, _ = make_tensors((2, 3, 6, 6), (4, 3, 3, 3), torch.float32, is_last=False)
    frozen = weight.detach()
    for tensors, wanted in (((image, weight), (image, weight)), ((image, frozen), (image,))):
        with monkeypatch.context() as patched:
            gradients = []
            for _ in range(2):
                gradients.append(torch.autograd.grad(sh.conv2d(*tensors).sum(), wanted))
                forbid_operators(patched)
        for before, after in zip(*gradients, strict=True):
            assert torch.equal(before, after)


def test_gradients_of_gradients_of_a_known_call() -> None:
    image, weight, bias = make_tensors((1, 2, 5, 4), (4, 2, 3, 3), torch.float64, is_last=False)
    run_step(sh.conv2d, (image, weight, bias), padding=1)

    def convolve(*tensors: Tensor) -> Tensor:
        return sh.conv2d(*tensors, padding=1)

    assert torch.autograd.gradcheck(convolve, (image, weight, bias))
    assert torch.autograd.gradgradcheck(convolve, (image, weight, bias))


def test_a_gradient_has_the_strides_of_its_weight() -> None:
    tensors = make_tensors((2, 8, 6, 6), (8, 8, 3, 3), torch.float32, is_last=True)
    for _ in range(2):
        _, _, of_weight, _ = run_step(sh.conv2d, tensors, padding=1)
    assert of_weight.stride() == tensors[1].stride()


def test_images_that_come_back_in_another_layout() -> None:
    tensors = make_tensors((2, 8, 6, 6), (8, 8, 3, 3), torch.float32, is_last=True)
    expected = run_step(sh.conv2d, tensors, padding=1)
    with save_on_cpu():  # gives contiguous copies back
        found = run_step(sh.conv2d, tensors, padding=1)
    for before, after in zip(expected, found, strict=True):
        assert torch.equal(before, after)


def test_other_threads_in_the_backward_pass() -> None:
    torch.set_num_threads(2)
    tensors = make_tensors((2, 8, 12, 12), (8, 8, 3, 3), torch.float32, is_last=True)
    expected = run_step(sh.conv2d, tensors, padding=1)
    output = sh.conv2d(*tensors, padding=1)
    with limited_threads(1):
        found = torch.autograd.grad(output, tensors, make_gradient(output))
    for before, after in zip(expected, (output, *found), strict=True):
        assert torch.equal(before, after)


def test_a_weight_written_through_data_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    image, weight, _ = make_tensors((1, 3, 6, 6), (40, 3, 3, 3), torch.float32, is_last=False)
    for _ in range(2):
        before = sh.conv2d(image, weight)
    weight.data[17, 1, 2, 2] += 1000  # one value of many: no sample need find it
    forbid_operators(monkeypatch)
    after = sh.conv2d(image, weight)
    changed = (before != after).any(0).any(-1).any(-1)
    assert changed.nonzero().flatten().tolist() == [17]


def test_a_profiler_sees_the_operators() -> None:
    tensors = make_tensors((1, 3, 6, 6), (4, 3, 3, 3), torch.float32, is_last=False)
    run_step(sh.conv2d, tensors)
    with torch.profiler.profile() as profile:
        run_step(sh.conv2d, tensors)
    names = {each.name for each in profile.events()}
    wanted = ("convolution", "convolution_grad_input", "convolution_grad_weight")
    assert {f"shorthaul::{each}" for each in wanted} <= names


def test_a_backward_pass_that_is_watched_goes_through_operators() -> None:
    class Listener(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: set[str] = set()

        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            self.names.add(str(function))
            return function(*arguments, **(named or {}))

    tensors = make_tensors((1, 3, 6, 6), (4, 3, 3, 3), torch.float32, is_last=False)
    _, *expected = run_step(sh.conv2d, tensors)
    output = sh.conv2d(*tensors)
    with Listener() as listener:
        found = torch.autograd.grad(output, tensors, make_gradient(output))
    assert "shorthaul.convolution_grad_weight.default" in listener.names
    for before, after in zip(expected, found, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("mode", ["reflect", "circular"])
def test_other_padding_keeps_its_gradient(mode: str) -> None:
    tensors = make_tensors((1, 2, 6, 6), (3, 2, 3, 3), torch.float64, is_last=False)
    options = {"padding": 1, "padding_mode": mode}
    first, again = (run_step(sh.conv2d, tensors, **options) for _ in range(2))
    for before, after in zip(first, again, strict=True):
        assert torch.equal(before, after)
    assert torch.autograd.gradcheck(lambda *each: sh.conv2d(*each, **options), tensors)
