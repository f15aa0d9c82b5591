"""What a step changes besides its result, so that it can be run again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy


class StepState:
    """Gradients, a module's buffers and random state as they were when this was made."""

    def __init__(self, parameters: torch.nn.Module | Iterable[torch.Tensor]) -> None:
        self._buffers: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor, Any]] = []
        if isinstance(parameters, torch.nn.Module):
            self._buffers = [
                (module._buffers, name, buffer, buffer.clone())
                for module in parameters.modules()
                for name, buffer in module._buffers.items()
                if buffer is not None and not is_lazy(buffer)
            ]
            parameters = parameters.parameters()
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = [
            (each, None if each.grad is None else each.grad.clone()) for each in parameters
        ]
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Put it all back."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient if gradient is None else gradient.clone()
        with torch.no_grad():
            for buffers, name, buffer, content in self._buffers:
                # Into the buffer's own memory, which others may share, and only where it changed: a
                # graph that saved it must still find the version that it saved.
                if not _is_same(buffer, content):
                    buffer.copy_(content)
                buffers[name] = buffer
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    def take_gradients(self) -> list[torch.Tensor]:
        """The gradients as they are now, without those of before; zeros where there is none."""
        taken = []
        for parameter, before in self._gradients:
            now = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            taken.append(now.clone() if before is None else now - before)
        return taken


def _is_same(tensor: torch.Tensor, content: torch.Tensor) -> bool:
    """Whether the bits are the same, NaN and signs of zero included."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return False
    return torch.equal(
        tensor.detach().reshape(-1).view(torch.uint8), content.reshape(-1).view(torch.uint8)
    )


def gradient_error(exact: Iterable[torch.Tensor], found: Iterable[torch.Tensor]) -> float:
    """Norm of the difference of all gradients together, over the norm of the exact ones."""
    difference = norm = 0.0
    for want, have in zip(exact, found, strict=True):
        difference += float((want.double() - have.double()).square().sum())
        norm += float(want.double().square().sum())
    return (difference / norm) ** 0.5 if norm else float(difference > 0)
