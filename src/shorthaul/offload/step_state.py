"""What a step changes besides its result, so that it can be run again."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class StepState:
    """Gradients and random state as they were when this was made."""

    def __init__(self, parameters: torch.nn.Module | Iterable[torch.Tensor]) -> None:
        if isinstance(parameters, torch.nn.Module):
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


def gradient_error(exact: Iterable[torch.Tensor], found: Iterable[torch.Tensor]) -> float:
    """Norm of the difference of all gradients together, over the norm of the exact ones."""
    difference = norm = 0.0
    for want, have in zip(exact, found, strict=True):
        difference += float((want.double() - have.double()).square().sum())
        norm += float(want.double().square().sum())
    return (difference / norm) ** 0.5 if norm else float(difference > 0)
