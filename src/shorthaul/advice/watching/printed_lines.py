"""Lines of Python that run as they are printed, where `model`, `batch` and, if one was given, `loss` are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shorthaul.advice.watching.measurement import Loss
from shorthaul.advice.watching.undisturbed import undisturbed
from shorthaul.offload.profiling import call_model


def write_loss(model: torch.nn.Module, batch: Any, loss: Loss, given: str = "batch") -> str:
    """What a step's backward pass begins with: the loss of what is named `given`.

    >>> write_loss(torch.nn.Linear(2, 2), torch.ones(1, 2), None)
    'model(batch).sum()'
    """
    stars = "**" if hasattr(batch, "keys") else "*" if isinstance(batch, Sequence) else ""
    call = f"model({stars}{given})"
    if loss is not None:
        return f"loss({call})"
    with undisturbed(model), torch.no_grad():
        output = call_model(model, batch)
    if isinstance(getattr(output, "loss", None), torch.Tensor):
        return f"{call}.loss"
    if isinstance(output, torch.Tensor):
        return f"{call}.sum()"
    return f"sum(each.sum() for each in {call} if torch.is_tensor(each))"


def write_micro_batches(model: torch.nn.Module, batch: Any, loss: Loss, parts: int) -> str:
    """The batch in parts, one backward pass for each; a loss that is a mean is divided."""
    value = write_loss(model, batch, loss, "part")
    is_sum = value.endswith(".sum()") or value.startswith("sum(")
    backward = f"{value}.backward()" if is_sum else f"({value} / {parts}).backward()"
    return (
        "from shorthaul.advice import split_batch\n"
        f"for part in split_batch(batch, {parts}):\n    {backward}"
    )
