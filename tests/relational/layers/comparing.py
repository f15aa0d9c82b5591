"""One layer of PyG's against ours: outputs and every gradient, and how far float32 may be from float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.relational import GINConv
from shorthaul.relational.compiled_layer import CompiledFunction

Tensors = dict[str, torch.Tensor]
# Ours adds in another order than PyG does, so it is given a few times PyG's own error.
MARGIN = 8.0


def use_backend(module: nn.Module, backend: str) -> None:
    """Every compiled function of `module` runs on `backend` from now on."""
    if isinstance(module, GINConv):  # which learns its widths from what it is called with
        for width in range(1, 9):
            for targets in ("joined", "apart", "none"):
                module._function(width, targets)
    for value in vars(module).values():
        for each in value.values() if isinstance(value, dict) else [value]:
            if isinstance(each, CompiledFunction):
                each.backend = backend


def run_layer(
    module: nn.Module, call: Callable[[Any, Tensors], Any], floats: Tensors, dtype: torch.dtype
) -> Tensors:
    """Outputs, and gradients of features and parameters, all by name, computed in `dtype`."""
    module = module.to(dtype)
    features = {
        name: value.detach().to(dtype, copy=True).requires_grad_() for name, value in floats.items()
    }
    outputs = _name_outputs(call(module, features))
    generator = torch.Generator().manual_seed(3)
    loss = torch.zeros((), dtype=dtype)
    for value in outputs.values():
        if value.is_floating_point():
            arrived = torch.randn(value.shape, dtype=torch.float32, generator=generator)
            loss = loss + (value * arrived.to(dtype)).sum()
    leaves = {f"features {name}": value for name, value in features.items()}
    leaves |= dict(module.named_parameters())
    found: list[torch.Tensor | None] = [None] * len(leaves)
    if loss.requires_grad:
        found = list(torch.autograd.grad(loss, list(leaves.values()), allow_unused=True))
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        outputs[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return {name: value.detach() for name, value in outputs.items()}


def _name_outputs(out: Any, name: str = "out") -> Tensors:
    if isinstance(out, torch.Tensor):
        return {name: out}
    parts = out.items() if isinstance(out, dict) else enumerate(out)
    named: Tensors = {}
    for key, value in parts:
        if value is not None:
            named |= _name_outputs(value, f"{name} {key}")
    return named


def assert_close(got: Tensors, expected: Tensors, allowed: dict[str, float], case: str) -> None:
    """The same names and shapes, and no element further off than what is allowed for its tensor."""
    assert got.keys() == expected.keys(), case
    for name, value in expected.items():
        assert got[name].shape == value.shape, f"{name} of {case}"
        if value.numel():
            error = (got[name].double() - value.double()).abs().max().item()
            # Not `error > allowed`: that is false of NaN.
            assert error <= allowed[name], (
                f"{name} is {error:.3g} off, allowed {allowed[name]:.3g}; numbers up to "
                f"{value.double().abs().max().item():.3g}\n{case}"
            )


def allow_double(expected: Tensors) -> dict[str, float]:
    """Errors of float64: a share of the largest of all numbers, which gradients are sums of."""
    return dict.fromkeys(expected, 1e-10 * _size(expected))


def allow_single(expected: Tensors, single: Tensors, shifted: Tensors) -> dict[str, float]:
    """Errors of float32, by tensor: the largest of three, times a margin.

    What PyG is off in float32; how far exact results move when all that goes in is rounded away by one
    place, which no algorithm can know better; and the last place of the tensor's largest number.
    """
    allowed = {}
    for name, value in expected.items():
        size = value.double().abs().max().item() if value.numel() else 0.0
        errors = [
            (each[name].double() - value.double()).abs().max().item() if value.numel() else 0.0
            for each in (single, shifted)
        ]
        allowed[name] = MARGIN * max(*errors, torch.finfo(torch.float32).eps * max(size, 1.0))
    return allowed


def shift_by_one_place(module: nn.Module, floats: Tensors) -> Tensors:
    """All parameters, in place, and features moved by up to one place of float32, at random."""
    generator = torch.Generator().manual_seed(5)
    step = torch.finfo(torch.float32).eps

    def shift(value: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(value.shape, dtype=torch.float64, generator=generator) * 2 - 1
        return value * (1 + noise * step)

    with torch.no_grad():
        for each in module.parameters():
            each.copy_(shift(each))
    return {name: shift(value) for name, value in floats.items()}


def _size(tensors: Tensors) -> float:
    return max(
        1.0, *(value.double().abs().max().item() for value in tensors.values() if value.numel())
    )
