"""A step without memory: what it would hold, operator by operator, from shapes alone.

Tensors are PyTorch's fake ones, which know shape, dtype and device and have no bytes, so the operators
are those that the device would run. It is a copy of the model that runs, with such tensors as parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from shorthaul.advice.watching.measurement import Loss
from shorthaul.advice.watching.observation import Observer, StepMemory
from shorthaul.errors import PlanError
from shorthaul.offload.policy.simulation import Unit
from shorthaul.offload.profiling import call_model, find_loss


def dry_step(
    model: torch.nn.Module, batch: Any, loss: Loss = None, *, device: str | None = None
) -> StepMemory:
    """What forward and backward would hold in tensors, with a model of any device, `meta` included.

    Args:
        model: The model.
        batch: As `sh.advise` takes it.
        loss: As `sh.advise` takes it (default None).
        device: Where it would run; None (default) for where the parameters lie, and the CPU for `meta`.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def stand_in(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        own = value.device.type
        place = device or ("cpu" if own == "meta" else own)
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=place)
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=value.requires_grad)
        return made.requires_grad_(value.requires_grad)

    try:
        with torch.random.fork_rng(devices=[]), fake:
            # A copy, as code of models may put tensors into attributes, and these would be fake ones.
            own = {id(each): stand_in(each) for each in (*model.parameters(), *model.buffers())}
            copied = copy.deepcopy(model, own)
            given = pytree.tree_map(
                stand_in, batch if isinstance(batch, tuple | list | Mapping) else (batch,)
            )
            with Observer(copied) as observer:
                find_loss(call_model(copied, given), loss).backward()  # type: ignore[no-untyped-call]
            return observer.finish()
    except (RuntimeError, TypeError) as error:  # such as sizes that depend on values
        raise PlanError(
            f"{type(model).__name__} cannot be played through without data: {error}\n"
            "  Use `sh.advise(model, batch)` or `sh.fit(model, batch, memory=...)`, which run it."
        ) from error


def units_by_order(memory: StepMemory) -> list[Unit]:
    """What is saved, with numbers of operators in the place of times."""
    return [
        Unit(
            each.module,
            each.size_bytes,
            each.size_bytes,
            produced_at_seconds=float(each.saved_at),
            # It is freed by the operator after the one that used it.
            first_use_at_seconds=float(max(each.saved_at, each.freed_at - 1)),
            last_use_at_seconds=float(each.freed_at),
        )
        for each in memory.saved
    ]
