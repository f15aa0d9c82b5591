"""Holding what is chosen to another machine, as far as nothing runs there."""

import sys

import pytest

from shorthaul.conv.problem.machine import VectorMachine


def hold_choices_to(machine: VectorMachine, patch: pytest.MonkeyPatch) -> None:
    """Let every method and every plan see `machine`; kernels that run would be wrong."""
    for name, module in list(sys.modules.items()):
        if name.startswith("shorthaul.conv.methods") and hasattr(module, "this_machine"):
            patch.setattr(module, "this_machine", lambda: machine)
