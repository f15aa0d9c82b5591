"""Weights added up, as `weights.h` does it, so that one is found by a share of the sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def add_up(weights: Sequence[float]) -> list[float]:
    """Sums so far, all of them as much smaller as it takes for the last one to be a number.

    >>> add_up([1.0, 2.0]), add_up([1.5e308, 1.5e308])[-1] < 1e300
    ([1.0, 3.0], True)
    """
    sums = list(itertools.accumulate(weights))
    if sums and math.isinf(sums[-1]):
        return list(itertools.accumulate(each * 2.0**-64 for each in weights))
    return sums
