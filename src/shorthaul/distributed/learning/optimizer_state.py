"""What an optimizer keeps for a weight: a number, or a number for each of the weight's.

>>> weight = torch.nn.Parameter(torch.zeros(4, 2))
>>> sorted(plan_state(torch.optim.SGD([weight], momentum=0.5), weight))
['momentum_buffer']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import optim

from shorthaul.errors import RowArgumentError

Group = Mapping[str, Any]
_MOMENTS = ("exp_avg", "exp_avg_sq")
# By class, what is kept for each number of the weight, and what once.
_KEPT: dict[type[optim.Optimizer], tuple[Callable[[Group], tuple[str, ...]], tuple[str, ...]]] = {
    optim.SGD: (lambda group: ("momentum_buffer",) if group["momentum"] else (), ()),
    optim.SparseAdam: (lambda _: _MOMENTS, ("step",)),
    optim.NAdam: (lambda _: _MOMENTS, ("step", "mu_product")),
    optim.RAdam: (lambda _: _MOMENTS, ("step",)),
    optim.Adamax: (lambda _: ("exp_avg", "exp_inf"), ("step",)),
    optim.Adadelta: (lambda _: ("square_avg", "acc_delta"), ("step",)),
    optim.Adagrad: (lambda _: ("sum",), ("step",)),
    optim.ASGD: (lambda _: ("ax",), ("step", "eta", "mu")),
    optim.Rprop: (lambda _: ("prev", "step_size"), ("step",)),
    optim.RMSprop: (
        lambda group: (
            "square_avg",
            *(("momentum_buffer",) if group["momentum"] else ()),
            *(("grad_avg",) if group["centered"] else ()),
        ),
        ("step",),
    ),
    **{
        each: (
            lambda group: (*_MOMENTS, *(("max_exp_avg_sq",) if group["amsgrad"] else ())),
            ("step",),
        )
        for each in (optim.Adam, optim.AdamW)
    },
}


def find_group(optimizer: optim.Optimizer, weight: torch.nn.Parameter) -> Group | None:
    """The group of parameters to which `weight` belongs."""
    for group in optimizer.param_groups:
        if any(each is weight for each in group["params"]):
            return group
    return None


def plan_state(optimizer: optim.Optimizer, weight: torch.nn.Parameter) -> dict[str, Any] | None:
    """Room for what the optimizer will keep after its first step; None where that is not known."""
    group, kept = find_group(optimizer, weight), _KEPT.get(type(optimizer))
    if group is None or kept is None:
        return None
    name_rows, once = kept
    is_wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    dtype = torch.float64 if is_wide else torch.float32
    number: Any = 0 if isinstance(optimizer, optim.SparseAdam) else None
    return {
        **{
            name: torch.zeros((), dtype=dtype, device="cpu") if number is None else number
            for name in once
        },
        **{name: torch.zeros_like(weight, requires_grad=False) for name in name_rows(group)},
    }


def is_of_rows(value: Any, weight: torch.Tensor) -> bool:
    """Whether there is a number for each of the weight's."""
    return isinstance(value, torch.Tensor) and value.shape == weight.shape


def require_rows(
    optimizer: optim.Optimizer, weight: torch.Tensor, state: Mapping[str, Any]
) -> None:
    """Raise unless all that is kept can be saved by rows: what sums up a rank's rows cannot."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or value.numel() == 1:
            continue
        if value.layout is not torch.strided or not is_of_rows(value, weight):
            what = f"shape {tuple(value.shape)}, {value.layout}".removesuffix(", torch.strided")
            raise RowArgumentError(
                "optimizer",
                "one that keeps dense numbers of the weight's shape, or single ones",
                f"{type(optimizer).__name__}, whose `{name}` has {what}",
            )
