"""Comparing a layer of ours with one of PyG's that has the same parameters."""

from __future__ import annotations

from typing import Any

import torch

_generator = torch.Generator().manual_seed(11)
EDGE_INDEX = torch.randint(40, (2, 300), generator=_generator)
EDGE_TYPE = torch.randint(5, (300,), generator=_generator)


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def assert_same_layer(
    ours: Any, theirs: Any, x: torch.Tensor | None, *inputs: Any, backend: str = "auto"
) -> None:
    """Equal outputs, and equal gradients of the input and of every parameter, in float64."""
    ours, theirs = ours.double(), theirs.double()
    with torch.no_grad():
        for number, parameter in enumerate(theirs.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    ours.load_state_dict(theirs.state_dict())
    for name in ("function", "apart", "by_number"):
        if hasattr(ours, name):
            getattr(ours, name).backend = backend
    features = None if x is None else x.requires_grad_()
    out, expected = ours(features, *inputs), theirs(features, *inputs)
    torch.testing.assert_close(out, expected)
    arrived = torch.randn(expected.shape, dtype=torch.float64)
    named = dict(theirs.named_parameters())
    first = [] if features is None else [features]
    got = torch.autograd.grad(out, [*first, *ours.parameters()], arrived, allow_unused=True)
    names = [name for name, _ in ours.named_parameters()]
    wanted = torch.autograd.grad(
        expected, [*first, *(named[name] for name in names)], arrived, allow_unused=True
    )
    for name, one, other in zip(["x"] * len(first) + names, got, wanted, strict=True):
        if one is None or other is None:
            assert not any(each is not None and each.any() for each in (one, other)), name
        else:
            torch.testing.assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}")
