"""What could be changed about a step, and what each change would do to its memory and time.

| change                    | how it is known                                                     |
| ------------------------- | ------------------------------------------------------------------- |
| offload, compute again    | the planner plays the measured step through, on the measured disk    |
| convolutions, graph layers | replaced, measured by a step, and put back                          |
| micro-batches, bfloat16   | measured by a step; they change numbers                             |
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from shorthaul.advice.advice import Change
from shorthaul.advice.blocks import Blocks
from shorthaul.advice.holding.repeatable import find_repeatable_blocks
from shorthaul.advice.watching.batches import count_samples, split_batch
from shorthaul.advice.watching.followed_loss import FollowedLoss
from shorthaul.advice.watching.measurement import (
    Loss,
    Measured,
    Step,
    time_compiled_steps,
    time_steps,
)
from shorthaul.advice.watching.printed_lines import write_loss, write_micro_batches
from shorthaul.advice.watching.undisturbed import undisturbed
from shorthaul.errors import ShorthaulError
from shorthaul.offload.policy.planner import Plan
from shorthaul.offload.policy.simulation import Decision
from shorthaul.offload.profiling import StepProfile, profile_step
from shorthaul.units import format_bytes, format_seconds

_WORTH_BYTES = 0.03  # of the peak: less is within what measurements waver
_WORTH_SECONDS = 0.05  # of a step
_SMALL_EXTRA = 0.05  # of a step's time: what offloading may cost where it is said to be nearly free
_SHORT_SECONDS = 1.0  # of a step: a longer one is tried once for each change
_PROBE_BYTES = 64 * 2**20


@dataclass
class Search:
    """A step, what may be tried on it, and what had to be left."""

    model: torch.nn.Module
    batch: Any
    loss: Loss
    measured: Measured
    peak_bytes: int
    directory: str | os.PathLike[str] | None
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The time of the step as it is."""
        return self.measured.step.seconds

    def find(self, *, has_trials: bool) -> tuple[Change, ...]:
        """Everything that helps, the most useful first."""
        found = list(self._offloads())
        if has_trials:
            for trial in (
                self._try_convolutions,
                self._try_graph_layers,
                self._try_micro_batches,
                self._try_bfloat16,
            ):
                try:
                    found += self._sift(trial())
                except Exception as error:  # a user's model may refuse anything
                    what = trial.__name__.removeprefix("_try_").replace("_", " ")
                    self.notes.append(f"{what}: not possible here: {error}")
        return tuple(sorted(found, key=self._rank))

    def _sift(self, tried: Iterator[Change]) -> Iterator[Change]:
        for each in tried:
            if self._is_worth_it(each):
                yield each
            else:
                self.notes.append(
                    f"{each.name}: tried, no gain: {format_bytes(each.peak_bytes)}, "
                    f"{format_seconds(each.seconds)}"
                )

    def _is_worth_it(self, change: Change) -> bool:
        saves = change.peak_bytes < self.peak_bytes * (1 - _WORTH_BYTES)
        hastens = change.seconds < self.seconds * (1 - _WORTH_SECONDS)
        is_bearable = change.seconds < 2 * self.seconds and change.peak_bytes < 2 * self.peak_bytes
        return (saves or hastens) and is_bearable

    def _rank(self, change: Change) -> float:
        memory = math.log(max(1, change.peak_bytes) / self.peak_bytes)
        return memory + math.log(max(1e-9, change.seconds) / self.seconds)

    # -- played through -----------------------------------------------------------------------

    def _offloads(self) -> Iterator[Change]:
        try:
            profile = self._profile(())
        except ShorthaulError as error:
            self.notes.append(f"offloading: {error}")
            return
        copying = measure_copying()
        plans = [each for each in profile.compare_budgets().plans if _is_offloading(each)]
        changes = [self._offload_change(each, copying, None) for each in plans]
        cheap = [each for each in changes if each.seconds <= self.seconds * (1 + _SMALL_EXTRA)]
        chosen = [
            min(group, key=lambda each: each.peak_bytes) for group in (cheap, changes) if group
        ]
        seen: set[int] = set()
        for each in chosen:
            if each.peak_bytes not in seen and self._is_worth_it(each):
                seen.add(each.peak_bytes)
                yield each
        yield from self._recomputations(plans, copying)

    def _recomputations(self, plans: list[Plan], copying: float) -> Iterator[Change]:
        blocks = find_repeatable_blocks(self.model)
        if blocks is None or not plans:
            return
        profile = self._profile_blocks(blocks)
        if profile is None:
            return
        without = plans[-1]  # of the smallest budget
        plan = profile.plan_within(without.budget_bytes)
        if plan.fits and Decision.RECOMPUTE in plan.decisions:
            change = self._offload_change(plan, copying, blocks)
            if self._is_worth_it(change):
                yield change

    def _profile_blocks(self, blocks: Blocks) -> StepProfile | None:
        try:
            return self._profile(blocks.modules)
        except Exception as error:  # as a block that cannot be run twice
            self.notes.append(f"computing blocks again: {error}")
            return None

    def _profile(self, regions: Iterable[torch.nn.Module]) -> StepProfile:
        with undisturbed(self.model):
            return profile_step(
                self.model,
                self.batch,
                loss=self.loss,
                regions=regions,
                directory=self.directory,
            )

    def _offload_change(self, plan: Plan, copying: float, blocks: Blocks | None) -> Change:
        simulation = plan.simulation
        saved_bytes = plan.kept_peak_bytes - simulation.peak_live_bytes
        budget = f"{math.ceil(plan.budget_bytes / 2**20)}MiB"
        where = "" if self.directory is None else f"{os.fspath(self.directory)!r}, "
        regions = "" if blocks is None else f", regions={blocks.expression}"
        verb = "offload activations" if blocks is None else "offload or recompute activations"
        moved_bytes = simulation.written_bytes
        return Change(
            "offload",
            f"{verb}, at most {format_bytes(plan.budget_bytes)} live instead of "
            f"{format_bytes(plan.kept_peak_bytes)}",
            f"offload = sh.offload.wrap(model, {where}budget={budget!r}{regions})",
            peak_bytes=self.peak_bytes - saved_bytes,
            seconds=self.seconds + simulation.extra_seconds + moved_bytes / copying,
            is_safe=True,
            how=f"played through, {format_bytes(moved_bytes)} written per step",
            arguments={
                "budget_bytes": math.ceil(plan.budget_bytes / 2**20) * 2**20,
                "directory": None if self.directory is None else os.fspath(self.directory),
                "regions": [] if blocks is None else list(blocks.names),
            },
        )

    # -- measured by a step -------------------------------------------------------------------

    def _trial(
        self,
        model: torch.nn.Module,
        batches: list[Any],
        timed: Callable[..., Step] = time_steps,
        **given: Any,
    ) -> Step:
        repeats = 3 if self.seconds < _SHORT_SECONDS else 1
        return timed(model, batches, self.loss, repeats=repeats, **given)

    def _peak_of(self, step: Step) -> int:
        own_bytes, before = step.own_bytes, self.measured.step.own_bytes
        if own_bytes is None or before is None:
            return self.peak_bytes
        return max(1, self.peak_bytes + own_bytes - before)

    def _try_convolutions(self) -> Iterator[Change]:
        kinds = torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d
        if not any(isinstance(each, kinds) for each in self.model.modules()):
            return
        from shorthaul.conv import replace_convs

        report = replace_convs(self.model)
        try:
            step = self._trial(report.model, [self.batch], timed=time_compiled_steps)
        finally:
            report.revert()
        yield Change(
            "replace_convs",
            "compute convolutions in window order where that is faster",
            "report = sh.replace_convs(model)",
            self._peak_of(step),
            step.seconds,
            is_safe=True,
            how="measured by a step",
        )

    def _try_graph_layers(self) -> Iterator[Change]:
        from shorthaul.relational import accelerate

        report = accelerate(self.model)
        if not report.swapped:
            return
        try:
            step = self._trial(report.model, [self.batch], timed=time_compiled_steps)
        finally:
            report.revert()
        yield Change(
            "accelerate",
            f"run {len(report.swapped):,} graph layers compiled",
            "report = sh.relational.accelerate(model)",
            self._peak_of(step),
            step.seconds,
            is_safe=True,
            how="measured by a step",
        )

    def _try_micro_batches(self) -> Iterator[Change]:
        samples = count_samples(self.batch)
        if samples is None or samples < 2 or samples % 2:
            return
        if isinstance(self.loss, FollowedLoss):
            self.notes.append("micro batches: the script's loss is known for a whole batch alone")
            return
        step = self._trial(self.model, split_batch(self.batch, 2))
        yield Change(
            "micro_batches",
            f"two micro-batches of {samples // 2:,} in the place of one of {samples:,}",
            write_micro_batches(self.model, self.batch, self.loss, 2),
            self._peak_of(step),
            step.seconds,
            is_safe=False,
            how="measured by a step",
        )

    def _try_bfloat16(self) -> Iterator[Change]:
        device = next(self.model.parameters()).device.type
        around = torch.autocast(device, torch.bfloat16)
        step = self._trial(self.model, [self.batch], context=around)
        value = write_loss(self.model, self.batch, self.loss)
        yield Change(
            "bfloat16",
            "products in bfloat16",
            f'with torch.autocast("{device}", torch.bfloat16):\n    value = {value}\nvalue.backward()',
            self._peak_of(step),
            step.seconds,
            is_safe=False,
            how="measured by a step",
        )


def _is_offloading(plan: Plan) -> bool:
    return any(each is not Decision.KEEP for each in plan.decisions)


def measure_copying() -> float:
    """Bytes per second at which memory is copied here."""
    source = torch.zeros(_PROBE_BYTES, dtype=torch.uint8, device="cpu")
    target = torch.empty_like(source)
    target.copy_(source)
    began = time.perf_counter()
    target.copy_(source)
    return _PROBE_BYTES / (time.perf_counter() - began)
