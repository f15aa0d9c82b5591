"""`sh.advise`: one measured step, and what would make it smaller or faster."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shorthaul.advice.advice import Advice
from shorthaul.advice.changes import Search
from shorthaul.advice.watching.measurement import Loss, Measured, measure
from shorthaul.advice.watching.memory_shares import (
    Optimizers,
    count_bytes,
    estimate_coming_bytes,
    find_states,
)
from shorthaul.advice.watching.observation import (
    ACTIVATIONS,
    CONVOLUTION,
    GATHER,
    GRADIENTS,
    TEMPORARIES,
)
from shorthaul.advice.watching.parts import by_part, find_repeated


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
    memory = _where_it_goes(model, batch, measured, optimizer)
    peak_bytes = sum(memory.values())
    search = Search(model, batch, loss, measured, peak_bytes, directory)
    changes = search.find(has_trials=trials)
    saved: Counter[str] = Counter()
    for owner, size in measured.memory.at_peak(ACTIVATIONS).items():
        saved[owner.module] += size
    microseconds = {
        name: round(seconds * 1e6) for name, seconds in measured.forward_seconds.items()
    }
    repeated = find_repeated(model)
    forward_seconds = {
        name: each / 1e6 for name, each in by_part(microseconds, repeated).items() if each
    }
    return Advice(
        model_name=type(model).__name__,
        seconds=measured.step.seconds,
        peak_bytes=peak_bytes,
        memory=memory,
        activations=by_part(saved, repeated),
        forward_seconds=forward_seconds,
        changes=changes,
        notes=tuple(search.notes),
        model=model,
        context=(batch, loss),
    )


def _where_it_goes(
    model: torch.nn.Module, batch: Any, measured: Measured, optimizer: Optimizers
) -> dict[str, int]:
    """The resident memory of the process at the peak of the step, by what for."""
    own = [*model.parameters(), *model.buffers()]
    there = {
        "parameters and buffers": own,
        "gradients, put aside for the step": [x.grad for x in own if x.grad is not None],
        "optimizer states": find_states(optimizer),
        "the batch": [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor)],
    }
    before = {what: count_bytes(tensors) for what, tensors in there.items()}
    # Not all that was asked for has been written to, and what was not is not resident.
    besides = measured.step.before_bytes - sum(before.values())
    parts: dict[str, int] = {"libraries, data, what the allocator keeps": max(0, besides)}
    parts |= before if besides >= 0 else {"resident before the step": measured.step.before_bytes}
    for owner, size in measured.memory.at_peak().items():
        what = _NAMES.get((owner.kind, owner.operation)) or _NAMES[owner.kind, ""]
        parts[what] = parts.get(what, 0) + size
    parts["outside of tensors: work space, allocator"] = measured.outside_bytes
    parts["optimizer states to come"] = estimate_coming_bytes(optimizer)
    return {what: size for what, size in parts.items() if size}


_NAMES = {
    (ACTIVATIONS, ""): "activations, saved by autograd",
    (ACTIVATIONS, CONVOLUTION): "activations: results of convolutions",
    (ACTIVATIONS, GATHER): "activations: gathered rows",
    (GRADIENTS, ""): "gradients of parameters",
    (TEMPORARIES, ""): "other tensors: results and gradients on the way",
    (TEMPORARIES, CONVOLUTION): "other tensors: of convolutions",
    (TEMPORARIES, GATHER): "other tensors: gathered rows",
}
