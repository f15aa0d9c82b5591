"""`sh.advise`: one measured step, and what would make it smaller or faster."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import torch

from shorthaul.advice.advice import Advice
from shorthaul.advice.changes import Search
from shorthaul.advice.watching.measurement import Loss, Measured, measure
from shorthaul.advice.watching.memory_shares import Optimizers, estimate_coming_bytes
from shorthaul.advice.watching.observation import ACTIVATIONS, GRADIENTS, TEMPORARIES, by_prefix


def advise(
    model: torch.nn.Module,
    batch: Any,
    *,
    loss: Loss = None,
    optimizer: Optimizers = None,
    directory: str | os.PathLike[str] | None = None,
    trials: bool = True,
) -> Advice:
    """Measure a step of `model`, and say what to change: `print` the answer, or `sh.apply` it.

    Several steps are run on the model itself. Parameters, gradients, buffers and random state are as
    before afterwards; attributes that the model's own code sets are not known.

    >>> import shorthaul as sh
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    >>> advice = sh.advise(model, torch.randn(1024, 512), trials=False)
    >>> sum(advice.activations.values())  # the inputs of three layers; the first one's is the batch
    6291456

    Args:
        model: The model, in the mode that it trains in.
        batch: A tensor, a tuple of positional or a mapping of named arguments.
        loss: A function of the output; None (default) takes the output's own `loss`, else the sum
            of its tensors.
        optimizer: Whose states are to come; one or several (default None: none are counted).
        directory: A directory on a disk, for offloading; None (default) takes the scratch setting.
        trials: Also try what can only be measured: convolutions and graph layers replaced,
            micro-batches, bfloat16 (default True). Each takes a few steps.
    """
    measured = measure(model, batch, loss)
    memory = _where_it_goes(measured, optimizer)
    peak_bytes = sum(memory.values())
    search = Search(model, batch, loss, measured, peak_bytes, directory)
    changes = search.find(has_trials=trials)
    at_peak = measured.memory.at_peak(ACTIVATIONS)
    saved: Counter[str] = Counter()
    for owner, size in at_peak.items():
        saved[owner.module] += size
    microseconds = {
        name: round(seconds * 1e6) for name, seconds in measured.forward_seconds.items()
    }
    forward_seconds = {name: each / 1e6 for name, each in by_prefix(microseconds).items() if each}
    return Advice(
        model_name=type(model).__name__,
        seconds=measured.step.seconds,
        peak_bytes=peak_bytes,
        memory=memory,
        activations=by_prefix(saved),
        forward_seconds=forward_seconds,
        changes=changes,
        notes=tuple(search.notes),
        model=model,
        context=(batch, loss),
    )


def _where_it_goes(measured: Measured, optimizer: Optimizers) -> dict[str, int]:
    """The resident memory of the process at the peak of the step, by what for."""
    parts: dict[str, int] = {"resident before the step": measured.step.before_bytes}
    names = {
        ACTIVATIONS: "activations, saved by autograd",
        GRADIENTS: "gradients of parameters",
        TEMPORARIES: "other tensors: results and gradients on the way",
    }
    for owner, size in measured.memory.at_peak().items():
        parts[names[owner.kind]] = parts.get(names[owner.kind], 0) + size
    parts["outside of tensors: work space, allocator"] = measured.outside_bytes
    parts["optimizer states to come"] = estimate_coming_bytes(optimizer)
    return {what: size for what, size in parts.items() if size}
