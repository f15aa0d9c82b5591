"""Convolutions, and models whose convolutions were replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import shorthaul as sh
from tests.matrix.layer_operations import fill
from tests.matrix.operation import Operation, Run, Tensors, as_leaf, random_tensor, with_gradients

SIDES = {1: (11,), 2: (9, 8), 3: (5, 6, 5)}
TOLERANCE = 1e-4


def _inputs(dimensions: int, *, transposed: bool = False) -> Callable[[], dict[str, torch.Tensor]]:
    def make() -> dict[str, torch.Tensor]:
        weight = (4, 6) if transposed else (6, 4)
        return {
            "x": random_tensor(2, 4, *SIDES[dimensions]),
            "weight": random_tensor(*weight, *[3] * dimensions) * 0.2,
            "bias": random_tensor(6),
        }

    return make


def _call(function: Callable[..., torch.Tensor], given: Tensors) -> Tensors:
    leaves = {name: as_leaf(each) for name, each in given.items()}
    out = function(leaves["x"], leaves["weight"], leaves["bias"], padding=1, stride=2)
    return with_gradients(out, **leaves)


def _of(dimensions: int, *, transposed: bool = False, is_heavy: bool = True) -> Operation:
    name = f"conv_transpose{dimensions}d" if transposed else f"conv{dimensions}d"

    def prepare(given: Tensors, _: Path) -> Run:
        return lambda: _call(getattr(sh, name), given)

    return Operation(
        f"sh.{name}",
        _inputs(dimensions, transposed=transposed),
        prepare,
        lambda given: _call(getattr(F, name), given),
        is_heavy=is_heavy,
        tolerance=TOLERANCE,
    )


def _module(make: Callable[[], nn.Module]) -> Callable[[Tensors], Any]:
    def run(given: Tensors) -> tuple[nn.Module, Run]:
        module = fill(make(), given["x"].dtype)

        def call() -> Tensors:
            module.zero_grad()
            x = as_leaf(given["x"])
            return with_gradients(module(x), x=x, **dict(module.named_parameters()))

        return module, call

    return run


def _layer(dimensions: int) -> Operation:
    name = f"Conv{dimensions}d"

    def make(kinds: Any) -> Callable[[], nn.Module]:
        return lambda: getattr(kinds, name)(4, 6, 3, padding=1)

    return Operation(
        f"sh.{name}",
        lambda: {"x": random_tensor(2, 4, *SIDES[dimensions])},
        lambda given, _: _module(make(sh))(given)[1],
        lambda given: _module(make(nn))(given)[1](),
        is_heavy=True,
        tolerance=TOLERANCE,
    )


def _network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 3))


def _folded() -> nn.Module:
    layers = [nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3)]
    return nn.Sequential(*layers).eval()


def _replaced(
    make: Callable[[], nn.Module] = _network, **options: Any
) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, _: Path) -> Run:
        module, call = _module(make)(given)
        sh.replace_convs(module, **options)
        return call  # type: ignore[no-any-return]

    return prepare


def _warmed(given: Tensors, _: Path) -> Run:
    module, call = _module(_network)(given)
    sh.replace_convs(module, policy="always")

    def run() -> Tensors:
        sh.warm_up(module, given["x"].detach(), compare=False, is_quiet=True)
        return call()  # type: ignore[no-any-return]

    return run


def _inferred(change: Callable[[nn.Module], object]) -> Callable[[Tensors, Path], Run]:
    """What is for inference alone, without gradients."""

    def prepare(given: Tensors, _: Path) -> Run:
        module = fill(_network(), given["x"].dtype).eval()
        change(module)

        def run() -> Tensors:
            with torch.no_grad():
                return {"out": module(given["x"])}

        return run

    return prepare


def _frozen(module: nn.Module) -> None:
    sh.conv.freeze_weights(module)
    sh.replace_convs(module, policy="always")


def _plain_inference(given: Tensors) -> Tensors:
    with torch.no_grad():
        return {"out": fill(_network(), given["x"].dtype)(given["x"])}


def _plain_network(given: Tensors) -> Tensors:
    return _module(_network)(given)[1]()  # type: ignore[no-any-return]


def _plain_folded(given: Tensors) -> Tensors:
    return _module(_folded)(given)[1]()  # type: ignore[no-any-return]


def _image() -> dict[str, torch.Tensor]:
    return {"x": random_tensor(2, 4, 9, 8)}


OPERATIONS = (
    _of(2, is_heavy=False),
    _of(1),
    _of(3),
    _of(2, transposed=True),
    _of(1, transposed=True),
    _of(3, transposed=True),
    *(_layer(dimensions) for dimensions in (1, 2, 3)),
    *(
        Operation(name, _image, prepare, plain, is_heavy=True, tolerance=TOLERANCE)
        for name, prepare, plain in (
            ("replace_convs", _replaced(policy="always"), _plain_network),
            ("replace_convs that measures", _replaced(policy="auto"), _plain_network),
            (
                "replace_convs that folds",
                _replaced(_folded, policy="always", fold=True),
                _plain_folded,
            ),
            ("warm_up", _warmed, _plain_network),
            ("freeze_weights", _inferred(_frozen), _plain_inference),
            ("quantize_weights", _inferred(sh.conv.quantize_weights), None),
        )
    ),
)
