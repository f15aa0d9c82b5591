"""The seed of a call's dropout: one number that the host draws, from which kernels make every mask."""

from __future__ import annotations

import torch

from shorthaul.errors import CapturedDropoutError
from shorthaul.jit.launching.device_guard import is_capturing


def draw_seed(layer: str, device: torch.device) -> int:
    """A seed from PyTorch's generator of the CPU, as `torch.manual_seed` sets it.

    It is an argument of the launches. A CUDA graph keeps those as they were captured, and every replay
    would drop the same elements: refused while one is captured.
    """
    if is_capturing(device):
        raise CapturedDropoutError(layer)
    return int(torch.randint(2**62, (), dtype=torch.int64, device="cpu"))
