"""Dropout's random numbers: a hash of (seed, stream, element), the same in PyTorch and in C++.

No state is kept, so any part of a mask can be made again, in any order and on any thread: the
backward pass asks for the forward pass's mask by asking again.
"""

from __future__ import annotations

import torch

MIX_1, MIX_2 = 0x7FEB352D, 0x846CA68B  # a 32-bit mixer of full avalanche
GOLDEN = 0x9E3779B9
_MASK = 0xFFFFFFFF


def start_state(seed: int, stream: int) -> int:
    """What the elements of one stream are mixed with."""
    return int(
        _mix(
            torch.tensor(
                (seed ^ (seed >> 32)) + stream * GOLDEN & _MASK, dtype=torch.int64, device="cpu"
            )
        )
    )


def keep_mask(
    rows: int, width: int, probability: float, stream: int, seed: int, like: torch.Tensor
) -> torch.Tensor:
    """0 with `probability`, else 1 / (1 - probability), for `rows * width` elements."""
    element = torch.arange(rows * width, device=like.device, dtype=torch.int64)
    mixed = _mix((element * GOLDEN & _MASK) ^ start_state(seed, stream))
    kept = mixed >= int(probability * 2**32)
    return kept.to(like.dtype) * (1.0 / (1.0 - probability) if probability < 1 else 0.0)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ (x >> 16)) * MIX_1 & _MASK
    x = (x ^ (x >> 15)) * MIX_2 & _MASK
    return x ^ (x >> 16)
