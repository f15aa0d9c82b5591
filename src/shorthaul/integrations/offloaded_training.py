"""Offloading for one training run: the part that all host integrations share.

A host begins it when parameters and optimizers exist, runs each step through it, and ends it, also after
an exception. Between two trainings nothing is open.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from shorthaul.advice.holding.chosen_plan import ChosenPlan
from shorthaul.advice.holding.repeated_blocks import RepeatedBlocks
from shorthaul.advice.watching.memory_shares import MemoryShares, measure_shares
from shorthaul.errors import PlanError
from shorthaul.integrations.step_reports import StepReports
from shorthaul.offload import ActivationOffload, offload_activations
from shorthaul.units import parse_bytes

_log = logging.getLogger("shorthaul")


class OffloadedTraining:
    """What a host's callback inherits: the budget, the context around steps, and what is told of them.

    Args:
        memory: What the whole process may have, such as `"8GiB"`; None (default), without a
            `budget`, lets everything leave memory.
        directory: A directory on a disk; None (default) takes the scratch setting.
        report: A file to which a line of JSON is added now and then; None (default) for none.
        report_every: After how many steps; None (default) for 100.
        recompute: With `memory`, whether blocks that the model repeats may be computed again where
            the plan finds that faster, and where that cannot change a gradient (default True).
        knobs: Further arguments of `sh.offload_activations`.
    """

    def __init__(
        self,
        memory: int | str | None = None,
        directory: str | os.PathLike[str] | None = None,
        *,
        report: str | os.PathLike[str] | None = None,
        report_every: int | None = None,
        recompute: bool = True,
        **knobs: Any,
    ) -> None:
        if memory is not None and knobs.get("budget") is not None:
            raise PlanError(
                "`memory` makes the budget: give one of `memory` and `budget`, not both."
            )
        self.memory_bytes = None if memory is None else parse_bytes(memory)
        self.directory, self.knobs, self.recompute = directory, knobs, recompute
        self.reports = StepReports.make(report, report_every)
        self.offload: ActivationOffload | None = None
        self.shares: MemoryShares | None = None
        self.blocks: RepeatedBlocks | None = None  # None where nothing may be computed again
        self.steps = 0  # training steps, each of one batch

    def begin_training(self, model: torch.nn.Module, optimizers: Iterable[Any]) -> None:
        """Make the budget, and open the context; what another training left open is closed.

        Args:
            model: What is trained.
            optimizers: Those whose states memory is kept for.
        """
        self.end_training()
        knobs = dict(self.knobs)
        if self.memory_bytes is not None:
            self.shares = measure_shares(model, optimizers, self.memory_bytes)
            knobs["budget"] = self.shares.require_budget()
            self.blocks = RepeatedBlocks(model) if self.recompute else None
        self.offload = offload_activations(self.directory, **knobs)
        self.steps = 0

    def run_step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the host's own step inside of the context; an exception ends the training.

        Args:
            step: What saves activations: a forward pass, with or without its backward pass.
            args: Its positional arguments.
            kwargs: Its arguments by name.
        """
        if self.offload is None:
            return step(*args, **kwargs)
        with self.ending_on_error(), self.marked_blocks(), self.offload:
            result = step(*args, **kwargs)
        self.note_step()
        return result

    def marked_blocks(self) -> AbstractContextManager[None]:
        """Inside, blocks may be computed again as the plan has it."""
        return contextlib.nullcontext() if self.blocks is None else self.blocks.marked()

    def note_step(self) -> None:
        """Count a step, and write a report when it is time for one."""
        self.steps += 1
        if self.reports is not None and self.reports.is_due(self.steps):
            self.reports.write(self.steps, self.metrics())

    @contextmanager
    def ending_on_error(self) -> Iterator[None]:
        """Say what a budget that is too small means for the process, and leave nothing open."""
        try:
            if self.shares is None:
                yield
            else:
                with self.shares.explaining():
                    yield
        except BaseException:
            self.end_training()  # most hosts that fail tell nobody
            raise

    def metrics(self) -> dict[str, float]:
        """What goes into the host's logs, under names that every logger takes; nothing when closed."""
        return {} if self.offload is None else self.offload.metrics()

    def end_training(self) -> None:
        """Close the context, and say in one line what it did."""
        offload, self.offload = self.offload, None
        if offload is None:
            return
        report, plan = offload.report(), ChosenPlan.make(offload)
        offload.close()
        self.blocks = None
        if self.steps:
            _log.info("%d training steps: %s", self.steps, report.summary())
            for line in () if plan is None else plan.describe():
                _log.info("%s", line)
        else:
            _log.warning("nothing was offloaded: training ended before its first step")
