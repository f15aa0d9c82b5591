"""Which plan a training under a memory limit followed, why, and what came of it beside what was expected."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from shorthaul.offload import ActivationOffload
from shorthaul.offload.policy.planner import Plan
from shorthaul.offload.policy.policy import OffloadPlanned
from shorthaul.offload.policy.simulation import Decision
from shorthaul.units import format_bytes, format_seconds


@dataclass(frozen=True)
class ChosenPlan:
    """The last plan of a training; times are those of a step from its first saved tensor to its last use."""

    kept_bytes: int
    offloaded_bytes: int
    recomputed_bytes: int
    recomputed_blocks: int
    budget_bytes: int
    all_kept_bytes: int  # at a time, if nothing left memory
    waiting_seconds: float
    recompute_seconds: float
    expected_live_bytes: int
    expected_seconds: float
    measured_live_bytes: int  # of all steps, the first included
    measured_seconds: float  # of the last step

    @classmethod
    def make(cls, offload: ActivationOffload) -> ChosenPlan | None:
        """What is followed now; None where no step was planned, as before the first is over."""
        policy = offload.policy
        plan = policy.plan if isinstance(policy, OffloadPlanned) else None
        if plan is None:
            return None
        counts, simulation = offload.store.counts, plan.simulation
        sizes = _sizes_of(plan)
        return cls(
            sizes[Decision.KEEP],
            sizes[Decision.OFFLOAD],
            sizes[Decision.RECOMPUTE],
            len(policy.recomputed),
            plan.budget_bytes,
            plan.kept_peak_bytes,
            simulation.stall_seconds,
            simulation.recompute_seconds,
            simulation.peak_live_bytes,
            simulation.step_seconds,
            counts.peak_live_bytes,
            offload.last_pass_seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(vars(self))

    def describe(self) -> list[str]:
        """What was chosen and why, then expected beside measured."""
        done = [f"keep {format_bytes(self.kept_bytes)}"] if self.kept_bytes else []
        if self.offloaded_bytes:
            done.append(f"offload {format_bytes(self.offloaded_bytes)}")
        if self.recomputed_blocks:
            size = format_bytes(self.recomputed_bytes)
            done.append(f"compute {self.recomputed_blocks:,} blocks again ({size})")
        if self.all_kept_bytes <= self.budget_bytes:
            why = f"all of it fits {format_bytes(self.budget_bytes)}"
        else:
            why = (
                f"all would take {format_bytes(self.all_kept_bytes)} of "
                f"{format_bytes(self.budget_bytes)}; no faster way was found, with "
                f"{format_seconds(self.waiting_seconds)} of waiting and "
                f"{format_seconds(self.recompute_seconds)} of computing again"
            )
        return [
            f"plan: {', '.join(done) or 'nothing is saved'}: {why}",
            f"expected: {format_seconds(self.expected_seconds)} forward and backward, "
            f"{format_bytes(self.expected_live_bytes)} live at a time",
            f"measured: {format_seconds(self.measured_seconds)} in the last step, "
            f"{format_bytes(self.measured_live_bytes)} live at most in any",
        ]


def _sizes_of(plan: Plan) -> Counter[Decision]:
    sizes: Counter[Decision] = Counter()
    for unit, decision in zip(plan.units, plan.decisions, strict=True):
        sizes[decision] += unit.size_bytes
    return sizes
