"""One call of a plan, whichever language its kernels are written in: the values so far, the kernels
that make more, and when a value's memory is free again.

A backend's plan is a `BackendPlan` with its generated text; its run is a `PlanRun` that says how one
product, one outer sum and one loop are launched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from shorthaul.jit.launching.device_guard import computing_on
from shorthaul.relational.backends import reference
from shorthaul.relational.ir.program import Program
from shorthaul.relational.lowering.kernels import (
    ALIASES,
    OuterSum,
    Plan,
    Product,
    RowLoop,
    TorchStep,
    Work,
    results_of,
)
from shorthaul.relational.topology.topology import Topology

# What sums are taken in, where that is not the dtype itself.
WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


@dataclass(frozen=True)
class BackendPlan:
    """A plan that a backend has written kernels for."""

    plan: Plan
    dtype: torch.dtype
    index_dtype: torch.dtype
    outputs: frozenset[str]  # values that leave the layer, by the names of their memory
    last_uses: Mapping[int, tuple[str, ...]]  # values that nobody needs after each kernel

    @property
    def works(self) -> tuple[Work, ...]:
        """Forward and backward kernels in one list."""
        return self.plan.forward + self.plan.backward


def kernel_name(plan: Plan, number: int) -> str:
    """What the kernel at this place of the plan is called."""
    direction = "forward" if number < len(plan.forward) else "backward"
    work = (plan.forward + plan.backward)[number]
    return f"{plan.program.name}_{direction}_{number}_{results_of(work)[-1]}"


class PlanRun(ABC):
    """The values of one call, and the order in which kernels add to them."""

    def __init__(
        self, plan: BackendPlan, topology: Topology, values: dict[str, torch.Tensor], seed: int
    ) -> None:
        self.plan, self.topology, self.values, self.seed = plan, topology, values, seed
        self.program: Program = plan.plan.program
        self.steps = self.program.by_name

    def forward(self) -> None:
        """Run the forward kernels."""
        self._run(range(len(self.plan.plan.forward)))

    def backward(self) -> None:
        """Run the backward kernels, from what was saved; what was not is computed again first."""
        self._run(self.plan.plan.again)
        plan = self.plan.plan
        self._run(range(len(plan.forward), len(plan.forward) + len(plan.backward)))

    def value(self, name: str) -> torch.Tensor:
        """A stored value with its own shape."""
        found = self.values.get(name)
        if found is not None:
            return found
        step = self.steps[name]
        if step.operation not in ALIASES:
            raise KeyError(f"{name} has not been made")
        whole = self.value(step.operands[0])
        if step.operation == "restrict":
            return whole[: self.topology.num_targets]
        return whole.reshape(whole.shape[0], *step.shape)

    def _run(self, numbers: Iterable[int]) -> None:
        with computing_on(self.topology.device):
            self._run_in_order(numbers)

    def _run_in_order(self, numbers: Iterable[int]) -> None:
        works = self.plan.works
        for number in numbers:
            work = works[number]
            if isinstance(work, TorchStep):
                self._run_torch(work)
            elif isinstance(work, Product):
                self._run_product(number, work)
            elif isinstance(work, OuterSum):
                self._run_outer(number, work)
            else:
                self._run_loop(number, work)
            for name in self.plan.last_uses.get(number, ()):
                self.values.pop(name, None)

    @abstractmethod
    def empty(self, name: str) -> torch.Tensor:
        """Memory for a value that is about to be made."""

    def _run_torch(self, work: TorchStep) -> None:
        step = self.steps[work.step]
        if step.operation == "count":
            self.values[step.name] = self.topology.count(step["of"], step["way"], self.plan.dtype)
            return
        operands = [self.value(each) for each in step.operands]
        device = self.topology.edge_ids.device
        like = operands[0] if operands else torch.empty(0, dtype=self.plan.dtype, device=device)
        self.values[step.name] = reference.run_step(
            step, self.program, self.topology, operands, like, self.seed
        ).contiguous()

    @abstractmethod
    def _run_product(self, number: int, work: Product) -> None: ...

    @abstractmethod
    def _run_outer(self, number: int, work: OuterSum) -> None: ...

    @abstractmethod
    def _run_loop(self, number: int, work: RowLoop) -> None: ...
