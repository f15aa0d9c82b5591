"""Activation offloading around a small model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import shorthaul as sh
from tests.matrix.layer_operations import fill
from tests.matrix.operation import Operation, Run, Tensors, as_leaf, random_tensor, with_gradients

WIDTH = 32


def _inputs() -> dict[str, torch.Tensor]:
    return {"x": random_tensor(16, WIDTH)}


def _model(dtype: torch.dtype) -> nn.Module:
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.GELU()]
    return fill(nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.Softmax(-1)), dtype)


def _step(model: nn.Module, given: Tensors) -> Tensors:
    model.zero_grad()
    x = as_leaf(given["x"])
    return with_gradients(model(x), x=x, **dict(model.named_parameters()))


def _offloaded(budget: str | None) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, folder: Path) -> Run:
        model = _model(given["x"].dtype)
        offload = sh.offload_activations(
            folder, minimum_bytes=1024, budget=budget, allow_memory=True
        )

        def run() -> Tensors:
            with offload:
                return _step(model, given)

        return run

    return prepare


def _plain(given: Tensors) -> Tensors:
    return _step(_model(given["x"].dtype), given)


OPERATIONS = (
    Operation("offload_activations", _inputs, _offloaded(None), _plain),
    Operation("offload_activations 8MiB", _inputs, _offloaded("8MiB"), _plain, is_heavy=True),
)
