"""`sh.fit`: the fastest way to run a step within a memory, found by the planner, held by the budget,
verified by a step.

| share of the memory | how it is known                                                      |
| ------------------- | -------------------------------------------------------------------- |
| resident before     | the system says so, after what the allocator keeps was given back    |
| gradients           | the step played through without data                                 |
| optimizer states    | the optimizer's own step, on tensors without memory                  |
| other tensors       | the step played through: its peak without what autograd saves        |
| work space          | a measured step: what was resident besides tensors                   |
| live activations    | the rest: the budget                                                 |
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from shorthaul.advice.blocks import Blocks
from shorthaul.advice.changes import measure_copying
from shorthaul.advice.fit import Fit, Needs, estimate_needs
from shorthaul.advice.holding.repeatable import find_repeatable_blocks
from shorthaul.advice.watching.batches import count_samples, split_batch
from shorthaul.advice.watching.dry import dry_step
from shorthaul.advice.watching.measurement import Loss, measure_before, observe_step, time_steps
from shorthaul.advice.watching.memory_shares import Optimizers, estimate_coming_bytes
from shorthaul.advice.watching.observation import ACTIVATIONS, StepMemory
from shorthaul.advice.watching.printed_lines import write_micro_batches
from shorthaul.advice.watching.undisturbed import undisturbed
from shorthaul.allocator.freed_memory import freed_memory
from shorthaul.errors import (
    MachineMemoryError,
    NoFitError,
    OffloadBudgetError,
    PlanError,
    ShorthaulError,
)
from shorthaul.host_memory import usable_bytes
from shorthaul.offload.policy.planner import Plan
from shorthaul.offload.policy.simulation import Decision
from shorthaul.offload.profiling import StepProfile, profile_step
from shorthaul.units import parse_bytes

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_RESERVE = 0.02  # of the memory, for what wavers from step to step
_ATTEMPTS = 3  # with ever smaller budgets, when a measured step takes more than it should
_WAITING = 0.05  # of a step: a plan that waits longer for the disk is also tried with packing


@dataclass(frozen=True)
class _Way:
    """One way to run a step, with what it is expected to take."""

    parts: int
    plan: Plan | None  # None where everything is kept
    blocks: Blocks | None
    seconds: float
    peak_bytes: int
    fixed_bytes: int  # of that, what is not live activations

    @property
    def how(self) -> str:
        """What is done, in words that follow a number of bytes."""
        if self.plan is None:
            return "with everything kept"
        again = " and blocks computed again" if self.blocks is not None else ""
        return f"with as few live activations as a plan was found to hold{again}"


def fit(
    model: torch.nn.Module,
    batch: Any,
    *,
    memory: int | str,
    loss: Loss = None,
    optimizer: Optimizers = None,
    directory: str | os.PathLike[str] | None = None,
    micro_batches: Sequence[int] = _MICRO_BATCHES,
    dry: bool = False,
) -> Fit | Needs:
    """The fastest combination of keeping, offloading, computing again and micro-batches that fits.

    It is verified by a measured step. The model is as before afterwards; `wrap` of the answer makes it
    train so.

    >>> import shorthaul as sh
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    >>> sh.fit(model, torch.randn(1024, 512), memory="64GiB").micro_batches
    1

    Args:
        model: The model, in the mode that it trains in.
        batch: A tensor, a tuple of positional or a mapping of named arguments.
        memory: What the whole process may have, such as `"8GiB"`.
        loss: A function of the output; None (default) takes the output's own `loss`, else the sum
            of its tensors. With micro-batches it is one that can be summed over them.
        optimizer: Whose states count; one or several (default None: none are counted).
        directory: A directory on a disk; None (default) takes the scratch setting.
        micro_batches: In how many equal parts the batch may be cut (default 1, 2, 4, 8 and 16).
        dry: Run nothing, and say from shapes alone what each configuration needs; the model may lie
            on `meta` (default False).
    """
    memory_bytes = parse_bytes(memory)
    samples = count_samples(batch)
    parts = [
        each
        for each in sorted(set(micro_batches))
        if each == 1 or (samples and samples % each == 0)
    ]
    coming_bytes = estimate_coming_bytes(optimizer)
    if dry:
        return estimate_needs(model, batch, loss, parts, memory_bytes, coming_bytes)
    fitting = _Fitting(model, batch, loss, directory, memory_bytes, coming_bytes)
    ways = sorted(fitting.find_ways(parts), key=lambda each: each.seconds)
    for way in ways:
        if way.peak_bytes <= memory_bytes:
            found = fitting.verify(way)
            if found is not None:
                return found
    raise fitting.refuse(ways)


class _Fitting:
    def __init__(
        self,
        model: torch.nn.Module,
        batch: Any,
        loss: Loss,
        directory: str | os.PathLike[str] | None,
        memory_bytes: int,
        coming_bytes: int,
    ) -> None:
        self.model, self.batch, self.loss, self.directory = model, batch, loss, directory
        self.memory_bytes, self.coming_bytes = memory_bytes, coming_bytes
        self.before_bytes = measure_before()
        self.gradient_bytes = sum(
            each.nbytes for each in model.parameters() if each.requires_grad and each.grad is None
        )
        self.outside_bytes = 0
        self.reserve_bytes = int(memory_bytes * _RESERVE)
        self.machine_bytes = usable_bytes() * 9 // 10
        # What a way was seen to take or to need, which is more than the memory.
        self.seen_bytes: dict[int, int] = {}
        self.disk_error: OffloadBudgetError | None = None
        self.samples = count_samples(batch)
        self.blocks = find_repeatable_blocks(model)

    # -- what could be done -------------------------------------------------------------------

    def find_ways(self, parts: Sequence[int]) -> Iterator[_Way]:
        """Each number of micro-batches, with everything kept or by the plan that fits."""
        memories = self._play_all(parts)
        can_run = [
            each
            for each in sorted(memories)
            if self._run_bytes(memories[each]) < self.machine_bytes
        ]
        if not can_run:
            raise self._no_room(parts[-1], memories)
        if self._kept_bytes(memories[can_run[0]]) > self.memory_bytes:
            # Before the first step: what the C library's heap has once had it uses again and keeps,
            # and the measured step would take what those before it took.
            freed_memory.settle()
        copying = measure_copying()
        smallest = can_run[-1]
        step = time_steps(self.model, [self._part(smallest)], self.loss, repeats=1)
        self.outside_bytes = max(0, (step.own_bytes or 0) - memories[smallest].peak_bytes)
        for each in can_run:
            yield from self._ways_of(each, memories[each], copying)
            if self._kept_bytes(memories[each]) <= self.memory_bytes:
                return  # smaller parts need less still, and are no faster

    def _part(self, parts: int) -> Any:
        return split_batch(self.batch, parts)[0]

    def _play_all(self, parts: Sequence[int]) -> dict[int, StepMemory]:
        """Each number of micro-batches played through, or run where that needs data.

        The smallest is run first: a larger one only if the machine has room for what that lets expect.
        """
        memories: dict[int, StepMemory] = {}
        smaller: int | None = None
        for each in sorted(parts, reverse=True):
            try:
                memories[each] = dry_step(self.model, self._part(each), self.loss)
            except PlanError:  # what needs data is watched while it runs
                if smaller is not None:
                    more_bytes = memories[smaller].peak_of(ACTIVATIONS) * (smaller - each) // each
                    if self._run_bytes(memories[smaller]) + more_bytes >= self.machine_bytes:
                        break
                memories[each] = observe_step(self.model, self._part(each), self.loss)[0]
            smaller = each
        return memories

    def _run_bytes(self, memory: StepMemory) -> int:
        """What the machine must have for a step in which everything is kept."""
        return self._kept_bytes(memory) - self.reserve_bytes

    def _no_room(self, parts: int, memories: dict[int, StepMemory]) -> ShorthaulError:
        """What to say when no step can be run here to be watched."""
        needed_bytes = self._run_bytes(memories[parts])
        return MachineMemoryError(self.machine_bytes, needed_bytes, self._in_parts(parts))

    def _in_parts(self, parts: int) -> str:
        if parts == 1:
            return "with the whole batch" + (
                f" of {self.samples:,} samples" if self.samples else ""
            )
        return f"in {parts:,} micro-batches of {(self.samples or 0) // parts:,} samples"

    def _fixed_bytes(self, memory: StepMemory) -> int:
        others = sum(size for owner, size in memory.at_peak().items() if owner.kind != ACTIVATIONS)
        return (
            self.before_bytes
            + self.coming_bytes
            + max(others, self.gradient_bytes)
            + self.outside_bytes
            + self.reserve_bytes
        )

    def _kept_bytes(self, memory: StepMemory) -> int:
        return self._fixed_bytes(memory) + memory.peak_of(ACTIVATIONS)

    def _ways_of(self, parts: int, memory: StepMemory, copying: float) -> Iterator[_Way]:
        fixed_bytes = self._fixed_bytes(memory)
        kept_bytes = self._kept_bytes(memory)
        if kept_bytes <= self.memory_bytes:
            step = time_steps(self.model, [self._part(parts)], self.loss, repeats=1)
            yield _Way(parts, None, None, parts * step.seconds, kept_bytes, fixed_bytes)
            return
        planned = list(self._planned(parts, fixed_bytes, None, copying))
        if not planned:  # too large, and known to be
            yield _Way(parts, None, None, math.inf, kept_bytes, fixed_bytes)
            return
        yield from planned
        is_free = any(each.plan is not None and each.plan.is_free for each in planned)
        if self.blocks is not None and not is_free:
            yield from self._planned(parts, fixed_bytes, self.blocks, copying)

    def _planned(
        self, parts: int, fixed_bytes: int, blocks: Blocks | None, copying: float
    ) -> Iterator[_Way]:
        try:
            profile = self._profile(parts, blocks)
        except PlanError:  # nothing to offload
            return
        plan = profile.plan_within(max(0, self.memory_bytes - fixed_bytes))
        simulation = plan.simulation
        seconds = simulation.step_seconds + simulation.written_bytes / copying
        peak_bytes = fixed_bytes + simulation.peak_live_bytes
        if blocks is None or Decision.RECOMPUTE in plan.decisions:
            yield _Way(parts, plan, blocks, parts * seconds, peak_bytes, fixed_bytes)

    def _profile(self, parts: int, blocks: Blocks | None) -> StepProfile:
        with undisturbed(self.model):
            return profile_step(
                self.model,
                self._part(parts),
                loss=self.loss,
                regions=() if blocks is None else blocks.modules,
                directory=self.directory,
            )

    # -- what is done -------------------------------------------------------------------------

    def verify(self, way: _Way) -> Fit | None:
        """The way as a measured step shows it, with a smaller budget where that is needed."""
        budget_bytes = None if way.plan is None else self.memory_bytes - way.fixed_bytes
        for _ in range(_ATTEMPTS):
            try:
                found = self._try(way, budget_bytes, None)
            except OffloadBudgetError as error:
                self._note_failure(way, error)
                return None
            if found.measured_bytes is None or found.measured_bytes <= self.memory_bytes:
                return self._try_packing(way, budget_bytes, found)
            self._note_seen(way, found.measured_bytes)
            if budget_bytes is None:
                return None
            excess_bytes = found.measured_bytes - self.memory_bytes
            budget_bytes -= excess_bytes + self.reserve_bytes
            if budget_bytes <= 0:
                return None
        return None

    def _note_seen(self, way: _Way, seen_bytes: int) -> None:
        self.seen_bytes[id(way)] = min(seen_bytes, self.seen_bytes.get(id(way), seen_bytes))

    def _note_failure(self, way: _Way, error: OffloadBudgetError) -> None:
        if error.refusal is not None:
            self.disk_error = error  # more memory is no remedy
        elif id(way) not in self.seen_bytes:  # with the whole budget
            self._note_seen(way, way.fixed_bytes + error.needed_bytes)

    def _try_packing(self, way: _Way, budget_bytes: int | None, found: Fit) -> Fit:
        if way.plan is None:
            return found
        simulation = way.plan.simulation
        if simulation.stall_seconds < _WAITING * simulation.step_seconds:
            return found
        try:
            packed = self._try(way, budget_bytes, "auto")
        except OffloadBudgetError:
            return found
        if (packed.measured_bytes or 0) > self.memory_bytes:
            return found
        return min(found, packed, key=lambda each: each.measured_seconds)

    def _try(self, way: _Way, budget_bytes: int | None, codec: str | None) -> Fit:
        found = Fit(
            model_name=type(self.model).__name__,
            memory_bytes=self.memory_bytes,
            samples=self.samples,
            micro_batches=way.parts,
            budget_bytes=budget_bytes,
            directory=None if self.directory is None else os.fspath(self.directory),
            regions=() if way.blocks is None else way.blocks.names,
            regions_expression=None if way.blocks is None else way.blocks.expression,
            codec=codec,
            predicted_bytes=way.peak_bytes,
            predicted_seconds=way.seconds,
            measured_bytes=None,
            measured_seconds=0.0,
            shares=self._shares(way),
            parts_lines=""
            if way.parts == 1
            else write_micro_batches(self.model, self._part(way.parts), self.loss, way.parts),
        )
        batches = split_batch(self.batch, way.parts)
        offload = found.wrap(self.model)
        try:
            step = time_steps(self.model, batches, self.loss, warm_ups=2, repeats=1)
        finally:
            if offload is not None:
                offload.unwrap()
                offload.close()
        peak_bytes = None if step.peak_bytes is None else step.peak_bytes + self.coming_bytes
        return replace(found, measured_bytes=peak_bytes, measured_seconds=step.seconds)

    def _shares(self, way: _Way) -> dict[str, int]:
        shares = {
            "resident before": self.before_bytes,
            "optimizer states to come": self.coming_bytes,
            "gradients": self.gradient_bytes,
            "work space and allocator": self.outside_bytes,
            "live activations": way.peak_bytes - way.fixed_bytes,
        }
        rest = {"other tensors and reserve": way.peak_bytes - sum(shares.values())}
        return {what: size for what, size in (shares | rest).items() if size > 0}

    def refuse(self, ways: Sequence[_Way]) -> ShorthaulError:
        """What to say when nothing fits."""
        if self.disk_error is not None:
            return self.disk_error
        needed = [self.seen_bytes.get(id(each), each.peak_bytes) for each in ways]
        least_bytes, least = min(zip(needed, ways, strict=True), key=lambda pair: pair[0])
        how = f"{self._in_parts(least.parts)}, {least.how}"
        shares = self._shares(least)
        if least_bytes > least.peak_bytes:
            shares["more than was expected"] = least_bytes - least.peak_bytes
        return NoFitError(self.memory_bytes, least_bytes, how, shares)
