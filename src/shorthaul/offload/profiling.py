"""One step of a model, watched: what it saves and when, and what the disk delivers meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.errors import PlanError
from shorthaul.offload.api import offload_activations
from shorthaul.offload.policy.planner import BudgetComparison, Plan, compare_budgets, plan_step
from shorthaul.offload.policy.policy import SavedTensor, units_of
from shorthaul.offload.policy.regions import Regions, mark_regions, unmark
from shorthaul.offload.policy.simulation import Disk, Unit
from shorthaul.offload.saved.step_state import StepState
from shorthaul.settings import settings


@dataclass(frozen=True)
class StepProfile:
    """What a step saves, when it is used, and how fast the scratch disk is."""

    units: tuple[Unit, ...]
    disk: Disk
    in_flight_bytes: int
    prefetch_bytes: int

    def plan_within(self, budget_bytes: int) -> Plan:
        """The fastest plan that was found for a budget."""
        window_bytes = budget_bytes // 4
        return plan_step(
            self.units,
            budget_bytes=budget_bytes,
            disk=self.disk,
            in_flight_bytes=min(self.in_flight_bytes, window_bytes),
            prefetch_bytes=min(self.prefetch_bytes, window_bytes),
        )

    def compare_budgets(self) -> BudgetComparison:
        """Plans for several budgets, from keeping everything to the least."""
        return compare_budgets(self.plan_within)


def profile_step(
    model: torch.nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    regions: Regions = (),
    directory: str | os.PathLike[str] | None = None,
    **knobs: Any,
) -> StepProfile:
    """Watch one step in which everything is kept; afterwards the model is as it was before."""
    with settings.override(freed_memory="keep"):  # other steps are measured beside this one
        offload = offload_activations(directory, policy=_keep, **knobs)
    before, marked = StepState(model), mark_regions(model, regions)
    try:
        disk = offload.measure_disk()
        with offload:
            find_loss(call_model(model, batch), loss).backward()  # type: ignore[no-untyped-call]
    finally:
        before.restore()
        for each in marked:
            unmark(each)
        offload.close()
    finished = offload.last_pass
    if finished is None or disk is None:
        raise PlanError(
            f"the step saved no tensor of at least {offload.minimum_bytes:,} bytes, so there is "
            "nothing to offload; lower `minimum_bytes`."
        )
    store = offload.store
    units = tuple(units_of(finished))
    return StepProfile(units, disk, store.in_flight_bytes, store.prefetch_bytes)


def call_model(model: torch.nn.Module, batch: Any) -> Any:
    """Call a model on a tensor, a tuple of positional or a mapping of named arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Sequence):
        return model(*batch)
    return model(batch)


def find_loss(output: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    """What a step's backward pass begins with."""
    if loss is not None:
        return loss(output)
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    if isinstance(output, torch.Tensor):
        return output.sum()
    tensors = [each for each in output if isinstance(each, torch.Tensor) and each.requires_grad]
    return torch.stack([each.sum() for each in tensors]).sum()


def _keep(_: SavedTensor) -> bool:
    return False
