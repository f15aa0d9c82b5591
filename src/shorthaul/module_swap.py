"""Swap a module's class in place, reversibly, so that it computes in another way.

Its class changes and it is given some attributes; parameters, `state_dict`, hooks, the training flag and
everybody's references to it stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

_ABSENT = object()


@dataclass(frozen=True)
class Swap:
    """What was changed, to be undone."""

    module: nn.Module
    original: type[nn.Module]
    before: Mapping[str, Any]  # attributes as they were

    def undo(self) -> None:
        """Give the module its class and attributes back."""
        for name, value in self.before.items():
            if value is _ABSENT:
                self.module.__dict__.pop(name, None)
            else:
                self.module.__dict__[name] = value
        self.module.__class__ = self.original


def swap_class(module: nn.Module, to: type[nn.Module], attributes: Mapping[str, Any]) -> Swap:
    """Let `module` be a `to`, with these attributes.

    >>> import torch
    >>> class Doubled(nn.Linear):
    ...     def forward(self, x): return super().forward(x) * self.times
    >>> module = nn.Linear(1, 1, bias=False)
    >>> swap = swap_class(module, Doubled, {"times": 2})
    >>> bool((module(torch.ones(1)) == 2 * module.weight).all())
    True
    >>> swap.undo()
    >>> type(module) is nn.Linear, hasattr(module, "times")
    (True, False)
    """
    swap = Swap(
        module,
        type(module),
        {name: module.__dict__.get(name, _ABSENT) for name in attributes},
    )
    module.__class__ = to
    module.__dict__.update(attributes)
    return swap
