"""Operations under `torch.func`'s transforms: as plain PyTorch gives it, or a refusal that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.func import grad, jacrev, jvp, vmap

import shorthaul as sh
from shorthaul.errors import KernelArgumentError
from tests.matrix.operation import random_numbers, random_tensor

TABLE = random_tensor(50, 6)
IDS = random_numbers(50, 4, 5)
POINTERS = torch.tensor([0, 2, 5])
IMAGES = {1: (3, 2, 4, 9), 2: (3, 2, 4, 9, 8), 3: (3, 2, 4, 5, 6, 5)}
Function = Callable[..., torch.Tensor]


def convolutions() -> list[Any]:
    return [
        pytest.param(f"{name}{dimensions}d", dimensions, id=f"{name}{dimensions}d")
        for name in ("conv", "conv_transpose")
        for dimensions in (1, 2, 3)
    ]


def tensors_of(name: str, dimensions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A stack of images and a stack of weights."""
    channels = (4, 6) if "transpose" in name else (6, 4)
    weights = random_tensor(3, *channels, *[3] * dimensions) * 0.2
    return random_tensor(*IMAGES[dimensions]), weights


@pytest.mark.parametrize(("name", "dimensions"), convolutions())
@pytest.mark.parametrize("over", ["images", "weights", "both"])
def test_a_convolution_under_vmap(name: str, dimensions: int, over: str) -> None:
    images, weights = tensors_of(name, dimensions)
    places = (None if over == "weights" else 0, None if over == "images" else 0)
    image = images if places[0] == 0 else images[0]
    weight = weights if places[1] == 0 else weights[0]
    found = vmap(getattr(sh, name), places)(image, weight)
    doubles = image.double(), weight.double()
    expected = vmap(getattr(F, name), places)(*doubles)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "dimensions"), convolutions())
def test_gradients_of_each_sample(name: str, dimensions: int) -> None:
    images, weights = tensors_of(name, dimensions)

    def by(function: Function, dtype: torch.dtype) -> torch.Tensor:
        def loss(weight: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
            return function(image, weight).square().mean()

        return vmap(grad(loss), (None, 0))(weights[0].to(dtype), images.to(dtype))

    found = by(getattr(sh, name), torch.float32)
    expected = by(getattr(F, name), torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own jvp calls it
@pytest.mark.parametrize(("name", "dimensions"), convolutions())
def test_directions_and_jacobians(name: str, dimensions: int) -> None:
    images, weights = tensors_of(name, dimensions)
    image, direction, weight = images[0].double(), images[1].double(), weights[0].double()
    ours, theirs = getattr(sh, name), getattr(F, name)
    _, found = jvp(lambda x: ours(x, weight), (image,), (direction,))
    torch.testing.assert_close(found, theirs(direction, weight))

    def sums(function: Function) -> torch.Tensor:
        return jacrev(lambda x: function(image, x).flatten(2).sum((0, 2)))(weight)

    torch.testing.assert_close(sums(ours), sums(theirs))


@pytest.mark.parametrize(
    "gather",
    [
        pytest.param(lambda u, ids: u[ids], id="u[ids]"),
        pytest.param(lambda u, ids: u.gather(ids), id="u.gather"),
        pytest.param(lambda u, ids: u.gather_reduce(POINTERS, ids), id="u.gather_reduce"),
        pytest.param(lambda u, ids: u.gather_linear(ids, TABLE[:3]), id="u.gather_linear"),
    ],
)
def test_gathers_under_vmap_say_what_to_do(gather: Function) -> None:
    table = sh.unified(TABLE)
    with pytest.raises(KernelArgumentError, match=r"torch\.func transform .* call it outside"):
        vmap(lambda ids: gather(table, ids))(IDS)
    assert torch.equal(vmap(lambda ids: table.plain()[ids])(IDS), TABLE[IDS])  # what was said


def test_torch_functions_of_a_unified_tensor_under_vmap() -> None:
    table = sh.unified(TABLE)
    assert torch.equal(vmap(lambda ids: F.embedding(ids, table))(IDS), TABLE[IDS])
    assert torch.equal(vmap(lambda row: row * 2)(table), TABLE * 2)
    found = vmap(lambda weight: F.linear(table, weight))(TABLE[:3, None])
    torch.testing.assert_close(found, vmap(lambda weight: F.linear(TABLE, weight))(TABLE[:3, None]))


def test_gradients_of_a_gather_by_torch_func_are_refused_or_right() -> None:
    def loss(table: torch.Tensor) -> torch.Tensor:
        return table[IDS[0]].square().sum()

    torch.testing.assert_close(grad(loss)(sh.unified(TABLE)), grad(loss)(TABLE))
