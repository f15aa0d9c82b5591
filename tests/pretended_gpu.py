"""A machine that has a GPU, pretended: what the placement rule sends there has no values any more.

The meta device stands for it. Work that belongs to the CPU must not notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from shorthaul.tensors.dispatch import operators


@contextmanager
def pretend_gpu() -> Iterator[torch.device]:
    """Unified tensors find an accelerator beside the CPU, as on a machine with a GPU."""
    device = torch.device("meta")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "current_device", lambda: device)
        yield device
