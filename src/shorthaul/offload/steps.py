"""Around a training step: wrap a model, plan before training, run a step again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from shorthaul.errors import ActivationLostError
from shorthaul.offload.api import offload_activations
from shorthaul.offload.context import ActivationOffload
from shorthaul.offload.policy.planner import BudgetComparison, Plan
from shorthaul.offload.policy.regions import Regions, mark_regions, unmark
from shorthaul.offload.profiling import profile_step
from shorthaul.offload.saved.step_state import StepState
from shorthaul.units import parse_bytes

Result = TypeVar("Result")


def wrap(
    model: torch.nn.Module,
    directory: str | os.PathLike[str] | None = None,
    *,
    regions: Regions = (),
    **knobs: Any,
) -> ActivationOffload:
    """Offload what every call of `model` saves, with nothing to change in the training loop.

    Returns what `sh.offload_activations` returns, for its report; `unwrap()` of that takes the hooks off.

    >>> import torch, shorthaul as sh
    >>> model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU())
    >>> offload = sh.offload.wrap(model, minimum_bytes="64KiB")
    >>> model(torch.randn(256, 512)).sum().backward()
    >>> offload.report().counts.offloaded
    2

    Args:
        model: The model.
        directory: A directory on a disk; None (default) takes the scratch setting.
        regions: Modules of the model or their class, which may be computed again where the plan
            finds that faster (default none).
        knobs: Further arguments of `sh.offload_activations`.
    """
    offload = offload_activations(directory, **knobs)
    marked = mark_regions(model, regions)
    offload.on_unwrap.append(enter_at_calls(model, offload))
    offload.on_unwrap += [functools.partial(unmark, each) for each in marked]
    return offload


def enter_at_calls(
    model: torch.nn.Module, context: AbstractContextManager[Any]
) -> Callable[[], None]:
    """Run every call of `model` inside of `context`; returns what ends that.

    Args:
        model: The model, which gets two hooks.
        context: Entered before each call, and left after it.
    """
    hooks = [
        model.register_forward_pre_hook(_Enters(context), prepend=True),
        # Also after an exception in forward, which would otherwise leave the hooks switched on.
        model.register_forward_hook(_Leaves(context), always_call=True),
    ]

    def remove() -> None:
        for each in hooks:
            each.remove()

    return remove


class _OfModel:
    """A hook of a wrapped model. In a copy, or when it was saved, it does nothing any more.

    Buffers, engines and a file on the scratch disk belong to one process and cannot be copied: a
    model that was copied or loaded is a plain one until it is wrapped itself.
    """

    def __init__(self, context: AbstractContextManager[Any] | None = None) -> None:
        self.context = context

    def __reduce__(self) -> tuple[type[_OfModel], tuple[()]]:
        return type(self), ()


class _Enters(_OfModel):
    def __call__(self, *_: Any) -> None:
        if self.context is not None:
            self.context.__enter__()


class _Leaves(_OfModel):
    def __call__(self, *_: Any) -> None:
        if self.context is not None:
            self.context.__exit__(None, None, None)


def plan(
    model: torch.nn.Module,
    batch: Any,
    *,
    budget: int | str | None = None,
    directory: str | os.PathLike[str] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    regions: Regions = (),
    **knobs: Any,
) -> Plan | BudgetComparison:
    """What `sh.offload_activations` would do with `model`: one profiled step, before training.

    Gradients, buffers and random state are as before afterwards. Without a budget, what several would
    cost: `print` it to see them.

    Args:
        model: The model.
        batch: A tensor, a tuple of positional or a mapping of named arguments.
        budget: Bound of the activation bytes in memory, such as `"4GiB"`; None (default) compares
            several.
        directory: A directory on a disk; None (default) takes the scratch setting.
        loss: A function of the output; None (default) takes the output's own `loss`, else the sum
            of its tensors.
        regions: Modules of the model or their class, which may be computed again (default none).
        knobs: Further arguments of `sh.offload_activations`.
    """
    budget_bytes = None if budget is None else parse_bytes(budget)
    profile = profile_step(model, batch, loss=loss, regions=regions, directory=directory, **knobs)
    return profile.compare_budgets() if budget_bytes is None else profile.plan_within(budget_bytes)


def retry_step(
    step: Callable[[], Result],
    parameters: torch.nn.Module | Iterable[torch.Tensor],
    *,
    attempts: int = 1,
) -> Result:
    """Run `step` (forward and backward, not the optimizer), again if an activation is lost.

    Parameters are unchanged until the optimizer steps, so a step that failed half-way can be run
    from its beginning once the gradients of `parameters` and the random state are what they were.

    Args:
        step: Forward and backward, as a function without arguments.
        parameters: A module, or the tensors whose gradients are put back.
        attempts: How often to run it again (default 1).
    """
    before = StepState(parameters)
    attempt = 0
    while True:
        try:
            return step()
        except ActivationLostError:
            before.restore()
            attempt += 1
            if attempt > attempts:
                raise
