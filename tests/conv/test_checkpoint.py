"""Convolutions under checkpoints and under other hooks: whatever computes saves the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import shorthaul as sh
from shorthaul.conv.execution.plan import forget_plans
from shorthaul.jit.compiling.loading import wait_for_compilers
from tests.conv.nothing_compiled import nothing_compiled
from tests.conv.tolerances import require_close
from tests.jit.gated_compiler import closed_gate

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# Plain layers, their images, and whether those come in channels last.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "conv1d": (lambda: nn.Conv1d(5, 7, 3, padding=1), (2, 5, 19), False),
    "conv2d": (lambda: nn.Conv2d(5, 7, 3, stride=2, padding=1), (2, 5, 9, 10), False),
    "conv2d channels last": (lambda: nn.Conv2d(5, 7, 3, padding=1), (2, 5, 9, 10), True),
    "conv3d": (lambda: nn.Conv3d(3, 4, (2, 3, 3)), (2, 3, 4, 6, 7), False),
    "conv3d channels last": (lambda: nn.Conv3d(3, 4, 3, padding=1), (2, 3, 4, 6, 7), True),
    "one image": (lambda: nn.Conv2d(5, 7, 3), (5, 9, 10), False),
    "same": (lambda: nn.Conv2d(5, 7, (2, 3), padding="same"), (2, 5, 9, 10), False),
    "reflected": (
        lambda: nn.Conv2d(5, 7, 3, padding=1, padding_mode="reflect"), (2, 5, 9, 10), False,
    ),
    "grouped": (lambda: nn.Conv2d(6, 8, 3, groups=2, bias=False), (2, 6, 9, 10), False),
}  # fmt: skip
SAME_WARNING = "ignore:Using padding='same' with even kernel lengths:UserWarning"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    forget_plans()
    yield
    forget_plans()


def make(name: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """A plain layer, the same as one of ours, and images."""
    torch.manual_seed(0)
    make_layer, shape, is_last = LAYERS[name]
    plain = make_layer()
    ours = getattr(sh, type(plain).__name__)(
        plain.in_channels, plain.out_channels, plain.kernel_size, plain.stride, plain.padding,
        plain.dilation, plain.groups, plain.bias is not None, plain.padding_mode,
    )  # fmt: skip
    ours.load_state_dict(plain.state_dict())
    image = torch.randn(shape)
    return plain, ours, image.to(memory_format=LAST[len(shape)]) if is_last else image


def find_gradients(
    layer: nn.Module, image: Tensor, *, meanwhile: Callable[[], object] = lambda: None
) -> list[Tensor]:
    """Of a checkpoint around the layer, and around what follows it; `meanwhile` before it is recomputed."""
    leaves = [image.clone().requires_grad_(), *layer.parameters()]
    output = checkpoint(lambda x: layer(x).tanh(), leaves[0], use_reentrant=False)
    meanwhile()
    return list(torch.autograd.grad(output.pow(2).sum(), leaves))


def find_gradients_late(gate: Path, layer: nn.Module, image: Tensor) -> list[Tensor]:
    """The same, with kernels that are compiled after the forward pass."""
    leaves = [image.clone().requires_grad_(), *layer.parameters()]
    with closed_gate(gate):
        output = checkpoint(lambda x: layer(x).tanh(), leaves[0], use_reentrant=False)
    wait_for_compilers()
    return list(torch.autograd.grad(output.pow(2).sum(), leaves))


def expect_gradients(plain: nn.Module, image: Tensor) -> list[Tensor]:
    layer = type(plain)(
        plain.in_channels, plain.out_channels, plain.kernel_size, plain.stride, plain.padding,
        plain.dilation, plain.groups, plain.bias is not None, plain.padding_mode,
    ).double()  # fmt: skip
    layer.load_state_dict(plain.state_dict())
    leaves = [image.double().requires_grad_(), *layer.parameters()]
    return list(torch.autograd.grad(layer(leaves[0]).tanh().pow(2).sum(), leaves))


def require_all_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        require_close(one, other, 1e-4)


@pytest.mark.filterwarnings(SAME_WARNING)
@pytest.mark.parametrize("name", LAYERS)
def test_a_checkpoint_is_recomputed_by_what_is_there_by_then(name: str) -> None:
    plain, ours, image = make(name)
    expected = expect_gradients(plain, image)
    require_all_close(find_gradients(ours, image), expected)  # operators, then addresses
    require_all_close(find_gradients(ours, image), expected)
    require_all_close(find_gradients(ours, image, meanwhile=forget_plans), expected)


@pytest.mark.filterwarnings(SAME_WARNING)
@pytest.mark.parametrize("name", LAYERS)
def test_kernels_that_come_between_forward_and_recomputation(tmp_path: Path, name: str) -> None:
    plain, ours, image = make(name)
    expected = expect_gradients(plain, image)
    with nothing_compiled(tmp_path):
        require_all_close(find_gradients_late(tmp_path, ours, image), expected)
        require_all_close(find_gradients(ours, image), expected)


@pytest.mark.parametrize("name", ["conv1d", "conv2d channels last", "one image"])
def test_transposed(name: str) -> None:
    _, layer, image = make(name)
    weight = layer.weight.detach().clone().requires_grad_()
    transpose: Any = getattr(sh, f"conv_transpose{weight.dim() - 2}d")
    plain: Any = getattr(nn.functional, f"conv_transpose{weight.dim() - 2}d")
    image = torch.randn(
        *image.shape[: image.dim() - weight.dim() + 1], 7, *image.shape[2 - weight.dim() :]
    )
    leaves = [image.requires_grad_(), weight]
    exact = [each.detach().double().requires_grad_() for each in leaves]
    expected = torch.autograd.grad(plain(*exact, stride=2).pow(2).sum(), exact)
    for _ in range(2):
        output = checkpoint(lambda *x: transpose(*x, stride=2), *leaves, use_reentrant=False)
        forget_plans()
        require_all_close(list(torch.autograd.grad(output.pow(2).sum(), leaves)), list(expected))


def test_a_compiled_checkpoint() -> None:
    torch._dynamo.reset()
    plain, ours, image = make("conv2d")
    compiled = torch.compile(lambda x: find_output(ours, x), backend="aot_eager")
    leaves = [image.clone().requires_grad_(), *ours.parameters()]
    found = torch.autograd.grad(compiled(leaves[0]), leaves)
    require_all_close(list(found), expect_gradients(plain, image))


def find_output(layer: nn.Module, image: Tensor) -> Tensor:
    return checkpoint(lambda x: layer(x).tanh(), image, use_reentrant=False).pow(2).sum()


def test_what_a_convolution_returns_can_be_written_to() -> None:
    """In place, as activations do, whoever computed it."""
    _, ours, image = make("conv2d")
    for _ in range(2):
        leaves = [image.clone().requires_grad_(), *ours.parameters()]
        output = nn.functional.relu(ours(leaves[0]), inplace=True)
        exact = [each.detach().clone().requires_grad_() for each in leaves]
        wanted = torch.conv2d(*exact, stride=2, padding=1).relu()
        require_all_close(
            list(torch.autograd.grad(output.sum(), leaves)),
            list(torch.autograd.grad(wanted.sum(), exact)),
        )
