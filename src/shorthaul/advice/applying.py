"""`sh.apply`: the safe changes of an advice, made, and measured beside what was expected of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shorthaul.advice.advice import Advice, Change
from shorthaul.advice.watching.measurement import time_compiled_steps
from shorthaul.errors import PlanError
from shorthaul.offload import ActivationOffload, wrap
from shorthaul.units import format_bytes, format_seconds


@dataclass
class Applied:
    """Changes that were made to a model. Made by `sh.apply`."""

    model: torch.nn.Module  # as it is now
    changes: tuple[Change, ...]
    predicted_bytes: int  # peak of the process
    predicted_seconds: float
    measured_bytes: int | None = None  # None where the system does not tell
    measured_seconds: float | None = None
    offload: ActivationOffload | None = None
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def describe(self) -> str:
        """What was done, and what came of it beside what was expected."""
        if not self.changes:
            return "nothing was changed: no safe change was found that would help"
        lines = [f"done: {each.title}" for each in self.changes]
        rows: list[tuple[str, int | None, float]] = []
        rows.append(("expected", self.predicted_bytes, self.predicted_seconds))
        if self.measured_seconds is not None:
            rows.append(("measured", self.measured_bytes, self.measured_seconds))
        for what, size, seconds in rows:
            memory = "not known here" if size is None else format_bytes(size)
            lines.append(f"  {what:<10}{memory:>14} resident, step {format_seconds(seconds)}")
        return "\n".join(lines)

    __str__ = describe

    def revert(self) -> None:
        """Make the model what it was before; a second call does nothing."""
        while self._undo:
            self._undo.pop()()


def apply(advice: Advice, names: Sequence[str] | None = None) -> Applied:
    """Make the changes of `advice` that leave numbers as they are, and measure a step with them.

    >>> import shorthaul as sh
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    >>> applied = sh.apply(sh.advise(model, torch.randn(1024, 512), trials=False), names=[])
    >>> print(applied)
    nothing was changed: no safe change was found that would help

    When a change cannot be made, or the step with it fails, the model is as it was before.

    Args:
        advice: What `sh.advise` returned, in the same process.
        names: Names of the changes to make, among those that are safe; None (default) for all. Of
            several of one name, the first in the list is made.
    """
    if advice.model is None or advice.context is None:
        raise PlanError("advice that was loaded from a file knows no model; call `sh.advise` here.")
    chosen: dict[str, Change] = {}
    for each in advice.changes:
        if each.is_safe and (names is None or each.name in names):
            chosen.setdefault(each.name, each)
    changes = tuple(chosen.values())
    applied = Applied(
        advice.model,
        changes,
        predicted_bytes=advice.peak_bytes
        - sum(advice.peak_bytes - each.peak_bytes for each in changes),
        predicted_seconds=_product(advice.seconds, [each.seconds for each in changes]),
    )
    try:
        # Layers first: offloading wraps what is then there.
        for each in sorted(changes, key=lambda each: each.name == "offload"):
            _MAKERS[each.name](applied, each.arguments)
        if changes:
            _measure(applied, advice, advice.context)
    except BaseException:  # nobody would hold what takes the changes back
        applied.revert()
        raise
    return applied


def _measure(applied: Applied, advice: Advice, context: tuple[Any, Any]) -> None:
    batch, loss = context
    # The first steps watch, the plan is made from them.
    step = time_compiled_steps(applied.model, [batch], loss, warm_ups=2)
    applied.measured_seconds = step.seconds
    if step.peak_bytes is not None:
        coming_bytes = advice.memory.get("optimizer states to come", 0)
        applied.measured_bytes = step.peak_bytes + coming_bytes


def _product(seconds: float, each_seconds: Sequence[float]) -> float:
    product = seconds
    for each in each_seconds:
        product *= each / seconds
    return product


def _offload(applied: Applied, arguments: dict[str, Any]) -> None:
    applied.offload = wrap(
        applied.model,
        arguments["directory"],
        budget=arguments["budget_bytes"],
        regions=[applied.model.get_submodule(name) for name in arguments["regions"]],
    )
    applied._undo += [applied.offload.close, applied.offload.unwrap]


def _replace_convs(applied: Applied, _: dict[str, Any]) -> None:
    from shorthaul.conv import replace_convs

    report = replace_convs(applied.model)
    applied.model = report.model
    applied._undo.append(report.revert)


def _accelerate(applied: Applied, _: dict[str, Any]) -> None:
    from shorthaul.relational import accelerate

    report = accelerate(applied.model)
    applied.model = report.model
    applied._undo.append(report.revert)


_MAKERS = {"offload": _offload, "replace_convs": _replace_convs, "accelerate": _accelerate}
