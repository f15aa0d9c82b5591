"""What every random choice of a sampler comes from: its seed, and the number of the sample.

>>> as_signed(choose_key(seed=7, number=0)) == as_signed(choose_key(seed=7, number=1))
False
"""

from __future__ import annotations

from typing import Any

from shorthaul.errors import SamplingError
from shorthaul.graphs.sampling.plain import GOLDEN, mix
from shorthaul.jit.runtime import kernel_threads

_MASK = 2**64 - 1
_MOST_THREADS = 1024


def read_seed(seed: Any) -> int:
    """A seed as 64 bits."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise SamplingError(f"seed must be a whole number, got {seed!r}.")
    return seed & _MASK


def choose_key(seed: int, number: int) -> int:
    """What all random numbers of sample `number` are drawn from."""
    return mix((mix(seed) + GOLDEN * (number + 1)) & _MASK)


def as_signed(key: int) -> int:
    """The same 64 bits as a kernel takes them."""
    return key - 2**64 if key >= 2**63 else key


def choose_threads(asked: Any) -> int:
    """How many threads draw: as many as were asked for, else PyTorch's."""
    if asked is None:
        return kernel_threads()
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise SamplingError(f"threads must be a whole number from 1 on, got {asked!r}.")
    return kernel_threads(min(asked, _MOST_THREADS))
