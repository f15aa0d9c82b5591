"""What of a process's memory is left for activations, before the first step has been taken.

| share             | how it is known                                                          |
| ----------------- | ------------------------------------------------------------------------ |
| resident now      | the system says so: parameters, data, libraries, optimizer states if any |
| gradients         | parameters that are trained and have none yet                            |
| optimizer states  | the optimizer's own step, taken on tensors without memory                |
| temporaries       | a tenth of the whole: what operators hold that nobody saves              |
| live activations  | the rest: the budget                                                     |
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.errors import OffloadBudgetError, PlanError, ProcessMemoryError
from shorthaul.host_memory import resident_bytes

_TEMPORARY_SHARE = 10  # one part of so many
_STATES_OF_UNKNOWN_OPTIMIZERS = 2  # tensors of a parameter's size, as Adam has


@dataclass(frozen=True)
class MemoryShares:
    """How the memory of a process is divided while it trains."""

    memory_bytes: int
    resident_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """What is needed whatever happens to activations, without temporaries."""
        return self.resident_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def temporary_bytes(self) -> int:
        """What is left to operators for their own results and work space."""
        return -(-self.memory_bytes // _TEMPORARY_SHARE)

    @property
    def budget_bytes(self) -> int:
        """What activations may take; not positive when there is nothing left."""
        return self.memory_bytes - self.temporary_bytes - self.fixed_bytes

    def least_bytes(self, activation_bytes: int) -> int:
        """The memory that a process needs for `activation_bytes` of activations.

        >>> shares = MemoryShares(100, resident_bytes=40, gradient_bytes=10, optimizer_bytes=20)
        >>> shares.budget_bytes, shares.least_bytes(20), shares.least_bytes(29)
        (20, 100, 110)
        """
        needed_bytes = self.fixed_bytes + activation_bytes
        return -(-needed_bytes * _TEMPORARY_SHARE // (_TEMPORARY_SHARE - 1))

    def require_budget(self) -> int:
        """The budget, or an error that says what takes all of the memory."""
        if self.budget_bytes <= 0:
            raise self.error(0)
        return self.budget_bytes

    def error(self, activation_bytes: int) -> ProcessMemoryError:
        """What to say when the activations that are needed at once do not fit."""
        parts = {
            "resident now": self.resident_bytes,
            "gradients": self.gradient_bytes,
            "optimizer states": self.optimizer_bytes,
            "activations needed at once": activation_bytes,
        }
        return ProcessMemoryError(self.memory_bytes, self.least_bytes(activation_bytes), parts)

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Say of a budget that is too small what it means for the process."""
        try:
            yield
        except OffloadBudgetError as error:
            if error.refusal is not None:  # the disk is the reason, and more memory no remedy
                raise
            raise self.error(error.needed_bytes) from error


def measure_shares(
    model: torch.nn.Module, optimizers: Iterable[Any], memory_bytes: int
) -> MemoryShares:
    """Divide `memory_bytes` for training `model`, whose parameters lie in host memory.

    What the optimizers train besides it has gradients, too.
    """
    optimizers = list(optimizers)
    trained = {
        id(each): each
        for each in (*model.parameters(), *(one for own in optimizers for one in _trained_by(own)))
    }
    parameters = list(trained.values())
    elsewhere = sorted({each.device.type for each in parameters} - {"cpu"})
    if elsewhere:
        raise PlanError(
            f"`memory` is that of a process, but the model's parameters lie on {elsewhere[0]}; give "
            "`budget`, the bytes of live activations, instead."
        )
    return MemoryShares(
        memory_bytes,
        resident_bytes=resident_bytes(),
        gradient_bytes=sum(
            each.nbytes for each in parameters if each.requires_grad and each.grad is None
        ),
        optimizer_bytes=sum(estimate_coming_state_bytes(each) for each in optimizers),
    )


def _unwrap(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)  # accelerate wraps what it is given


def _trained_by(optimizer: Any) -> list[torch.Tensor]:
    return [each for group in _unwrap(optimizer).param_groups for each in group["params"]]


Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


def estimate_coming_bytes(optimizers: Optimizers) -> int:
    """Bytes of state that the first step of one optimizer, of several or of none will make."""
    return sum(estimate_coming_state_bytes(each) for each in _listed(optimizers))


def find_states(optimizers: Optimizers) -> list[torch.Tensor]:
    """The tensors that optimizers hold already."""
    return [
        value
        for each in _listed(optimizers)
        for state in _unwrap(each).state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]


def count_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages that tensors lie in, each counted once."""
    storages = {}
    for each in tensors:
        if each.layout is torch.strided:
            storage = each.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _listed(optimizers: Optimizers) -> Sequence[torch.optim.Optimizer]:
    if optimizers is None:
        return ()
    return optimizers if isinstance(optimizers, Sequence) else (optimizers,)


def estimate_coming_state_bytes(optimizer: Any) -> int:
    """Bytes of state that the first step of an optimizer will make.

    >>> weight = torch.nn.Parameter(torch.zeros(1000))
    >>> estimate_coming_state_bytes(torch.optim.SGD([weight], 0.1, momentum=0.9))
    4000
    """
    own = _unwrap(optimizer)
    fresh: dict[int, torch.Tensor] = {
        id(each): each
        for group in own.param_groups
        for each in group["params"]
        if each.requires_grad and each not in own.state
    }
    try:
        return _step_without_memory(own, fresh)
    except (
        Exception
    ):  # optimizers are anybody's code, and some look at values, which there are none
        fresh_bytes: int = sum(each.nbytes for each in fresh.values())
        return _STATES_OF_UNKNOWN_OPTIMIZERS * fresh_bytes


def _step_without_memory(optimizer: Any, fresh: dict[int, torch.Tensor]) -> int:
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    twin.param_groups = []
    for group in optimizer.param_groups:
        shadows = [
            torch.nn.Parameter(torch.empty_like(each, device="meta"))
            for each in group["params"]
            if id(each) in fresh
        ]
        for each in shadows:
            each.grad = torch.empty_like(each)
        # Kernels for many tensors at once know the meta device less well; their states are the same.
        is_plain = {name: False for name in ("fused", "foreach") if name in group}
        twin.param_groups.append({**group, **is_plain, "params": shadows})
    twin.step()
    return sum(
        value.nbytes
        for state in twin.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
