"""How many batches are made ahead of the one that is trained on, within a memory: the same on all ranks.

>>> count_ahead([80, 30, 20], most_bytes=100, prefetch=3)  # the next one, and those that fit beside it
1
>>> count_ahead([60, 30, 20], most_bytes=100, prefetch=3)
2
>>> count_ahead([120, 1], most_bytes=100, prefetch=3)  # one is always allowed
1

A rank that had room would otherwise exchange rows with one that has none, and wait until that one's loop goes on,
however long that takes. So ranks tell each other sizes, and count with the largest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shorthaul.distributed.ranks.wire import Wire


def count_ahead(sizes: Sequence[int], most_bytes: int, prefetch: int) -> int:
    """How many of the batches to come, whose bytes are `sizes`, may be made now."""
    sums = itertools.accumulate(sizes[:prefetch])
    fitting = sum(1 for _ in itertools.takewhile(lambda total: total <= most_bytes, sums))
    return max(fitting, min(1, prefetch))


def agree_on_sizes(wire: Wire, own: Sequence[int]) -> list[int]:
    """The largest size on any rank of each batch to come."""
    return [max(each) for each in zip(*wire.gather_numbers(own), strict=True)] if own else []
