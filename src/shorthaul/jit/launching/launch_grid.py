"""How many programs a launch has: a grid has one dimension, because only its first one is long.

CUDA counts to 2^31 - 1 along the first dimension of a grid and to 65,535 along the others, which the
groups and images of a depthwise convolution exceed. So launches are flat, and programs find their place by
dividing.
"""

from __future__ import annotations

import math

from shorthaul.errors import GridTooLargeError

MOST_PROGRAMS = 2**31 - 1


def flat_grid(kernel: str, *sizes: int) -> tuple[int]:
    """The grid of a launch with the given number of programs along each direction.

    >>> flat_grid("a kernel", 3, 4, 5)
    (60,)
    """
    programs = math.prod(sizes)
    if programs > MOST_PROGRAMS:
        raise GridTooLargeError(kernel, programs, MOST_PROGRAMS)
    return (programs,)
