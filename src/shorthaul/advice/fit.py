"""What `sh.fit` answers: how to run a step within a memory, or what each way of running it needs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from shorthaul.advice.watching.batches import count_samples, split_batch
from shorthaul.advice.watching.dry import dry_step, units_by_order
from shorthaul.advice.watching.measurement import Loss, measure_before
from shorthaul.advice.watching.observation import ACTIVATIONS, StepMemory
from shorthaul.offload import ActivationOffload, wrap
from shorthaul.offload.policy.planner import plan_step
from shorthaul.offload.policy.simulation import Disk
from shorthaul.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Fit:
    """One way to run a step that a measured step has shown to fit.

    Args:
        model_name: The class of the model.
        memory_bytes: What the process may have.
        samples: In the batch; None where its tensors have no common first dimension.
        micro_batches: In how many parts the batch is cut.
        budget_bytes: Bound of live activations; None where everything is kept.
        directory: Where activations are offloaded to; None for the scratch setting.
        regions: Names of the blocks that may be computed again.
        regions_expression: The same as a line of Python.
        codec: What packs activations; None for nothing.
        predicted_bytes: Expected peak of the process.
        predicted_seconds: Expected time of a step.
        measured_bytes: Measured peak of the process; None where the system does not tell.
        measured_seconds: Measured time of a step.
        shares: The expected peak by what it holds.
        parts_lines: How a step runs in micro-batches, as Python; empty for the whole batch.
    """

    model_name: str
    memory_bytes: int
    samples: int | None
    micro_batches: int
    budget_bytes: int | None
    directory: str | None
    regions: tuple[str, ...]
    regions_expression: str | None
    codec: str | None
    predicted_bytes: int
    predicted_seconds: float
    measured_bytes: int | None
    measured_seconds: float
    shares: dict[str, int]
    parts_lines: str

    def wrap(self, model: torch.nn.Module) -> ActivationOffload | None:
        """Make `model` train so; None where nothing has to be done but cutting the batch.

        Args:
            model: The model.
        """
        if self.budget_bytes is None:
            return None
        return wrap(
            model,
            self.directory,
            budget=self.budget_bytes,
            compress=self.codec,
            regions=[model.get_submodule(name) for name in self.regions],
        )

    def split(self, batch: Any) -> list[Any]:
        """A batch in its micro-batches.

        Args:
            batch: As it was given to `sh.fit`.
        """
        return split_batch(batch, self.micro_batches)

    @property
    def lines(self) -> tuple[str, ...]:
        """What to add to a script, in the place of its forward and backward pass where it is cut in parts."""
        lines = []
        if self.budget_bytes is not None:
            where = "" if self.directory is None else f"{self.directory!r}, "
            knobs = f"budget={self.budget_bytes}"
            if self.codec is not None:
                knobs += f", compress={self.codec!r}"
            if self.regions_expression is not None:
                knobs += f", regions={self.regions_expression}"
            lines.append(f"offload = sh.offload.wrap(model, {where}{knobs})")
        lines += self.parts_lines.splitlines()
        return tuple(lines)

    def describe(self) -> str:
        """What to do, and what it takes, expected and measured."""
        done = [f"{self.micro_batches:,} micro-batches"] if self.micro_batches > 1 else []
        if self.budget_bytes is None:
            done.append("everything kept")
        else:
            done.append(f"at most {format_bytes(self.budget_bytes)} of live activations")
        if self.regions:
            done.append(f"{len(self.regions):,} blocks that may be computed again")
        if self.codec is not None:
            done.append("packed where that pays")
        measured = "not known here"
        if self.measured_bytes is not None:
            measured = format_bytes(self.measured_bytes)
        lines = [
            f"{self.model_name} fits {format_bytes(self.memory_bytes)}: {', '.join(done)}",
            f"  expected {format_bytes(self.predicted_bytes):>12}, "
            f"step {format_seconds(self.predicted_seconds)}",
            f"  measured {measured:>12}, step {format_seconds(self.measured_seconds)}",
            *(f"  {what:<28}{format_bytes(size):>12}" for what, size in self.shares.items()),
        ]
        lines += [f"  > {line}" for line in self.lines] or ["  nothing has to be changed"]
        return "\n".join(lines)

    __str__ = describe

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.

        Args:
            path: The file.
        """
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class Need:
    """What one configuration needs, from shapes alone.

    Args:
        micro_batches: In how many parts the batch is cut.
        kept_bytes: The peak of the process with everything kept.
        least_bytes: The same with as few live activations as a plan was found to hold.
    """

    micro_batches: int
    kept_bytes: int
    least_bytes: int


@dataclass(frozen=True)
class Needs:
    """What training a model needs in each configuration; nothing was run.

    Args:
        model_name: The class of the model.
        memory_bytes: What the process may have.
        samples: In the batch; None where its tensors have no common first dimension.
        parameter_bytes: Parameters and buffers.
        gradient_bytes: Their gradients.
        coming_bytes: Optimizer states.
        libraries_bytes: What is resident now.
        rows: One for each number of micro-batches.
    """

    model_name: str
    memory_bytes: int
    samples: int | None
    parameter_bytes: int
    gradient_bytes: int
    coming_bytes: int
    libraries_bytes: int
    rows: tuple[Need, ...]

    @property
    def fits(self) -> bool:
        """Whether any configuration does."""
        return any(each.least_bytes <= self.memory_bytes for each in self.rows)

    def describe(self) -> str:
        """A row for each configuration, and which of them fit."""
        lines = [
            f"{self.model_name}, from shapes alone, beside work space of operators:",
            f"  parameters and buffers {format_bytes(self.parameter_bytes)}, gradients "
            f"{format_bytes(self.gradient_bytes)}, optimizer states {format_bytes(self.coming_bytes)}, "
            f"resident now {format_bytes(self.libraries_bytes)}",
            f"  {'micro-batches':>13}{'everything kept':>18}{'offloaded, at least':>22}  within "
            f"{format_bytes(self.memory_bytes)}",
        ]
        for each in self.rows:
            verdict = "no"
            if each.kept_bytes <= self.memory_bytes:
                verdict = "yes"
            elif each.least_bytes <= self.memory_bytes:
                verdict = "offloaded"
            lines.append(
                f"  {each.micro_batches:>13,}{format_bytes(each.kept_bytes):>18}"
                f"{format_bytes(each.least_bytes):>22}  {verdict}"
            )
        return "\n".join(lines)

    __str__ = describe


def estimate_needs(
    model: torch.nn.Module,
    batch: Any,
    loss: Loss,
    parts: Sequence[int],
    memory_bytes: int,
    coming_bytes: int,
) -> Needs:
    """Play each number of micro-batches through without data."""
    own = [*model.parameters(), *model.buffers()]
    parameter_bytes = sum(each.nbytes for each in own)
    gradient_bytes = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    now_bytes = measure_before()
    # What lies on `meta` is not resident yet.
    to_come_bytes = sum(each.nbytes for each in own if each.device.type == "meta")
    fixed_bytes = now_bytes + to_come_bytes + coming_bytes
    rows = []
    for each in parts:
        memory = dry_step(model, split_batch(batch, each)[0], loss)
        others_bytes = _others_bytes(memory, gradient_bytes)
        saved_bytes = memory.peak_of(ACTIVATIONS)
        kept_bytes = fixed_bytes + max(memory.peak_bytes, others_bytes + saved_bytes)
        least_bytes = fixed_bytes + others_bytes + _least_live_bytes(memory)
        rows.append(Need(each, kept_bytes, min(kept_bytes, least_bytes)))
    return Needs(
        type(model).__name__,
        memory_bytes,
        count_samples(batch),
        parameter_bytes,
        gradient_bytes,
        coming_bytes,
        now_bytes,
        tuple(rows),
    )


def _others_bytes(memory: StepMemory, gradient_bytes: int) -> int:
    at_peak = memory.at_peak()
    return max(
        gradient_bytes, sum(size for owner, size in at_peak.items() if owner.kind != ACTIVATIONS)
    )


def _least_live_bytes(memory: StepMemory) -> int:
    """What a disk that is never waited for leaves in memory at least."""
    units = units_by_order(memory)
    if not units:
        return 0
    swift = Disk(math.inf, math.inf)
    largest_bytes = max(each.size_bytes for each in units)
    plan = plan_step(
        units,
        budget_bytes=0,
        disk=swift,
        in_flight_bytes=largest_bytes,
        prefetch_bytes=largest_bytes,
    )
    return plan.smallest_budget_bytes or plan.simulation.peak_live_bytes
