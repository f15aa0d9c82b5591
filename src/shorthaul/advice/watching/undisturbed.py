"""Steps on a user's own model, which leave no trace in it."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from shorthaul.offload.saved.step_state import StepState


@contextlib.contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Gradients, buffers, random state and modes are afterwards what they were before.

    Gradients that are there are put aside, not copied: steps inside begin without any.
    """
    parameters = list(model.parameters())
    gradients = [each.grad for each in parameters]
    modes = [(each, each.training) for each in model.modules()]
    numpy: Any = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    python_state = random.getstate()
    for each in parameters:
        each.grad = None
    state = StepState(model)
    try:
        yield
    finally:
        state.restore()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def forget_gradients(model: torch.nn.Module) -> None:
    """As `zero_grad` does, whatever the model's own method of that name does."""
    for each in model.parameters():
        each.grad = None
