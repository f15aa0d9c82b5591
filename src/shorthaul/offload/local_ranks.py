"""The ranks that share this machine, and what of a machine's budget is this one's.

>>> split_budget("4GiB")
4294967296
>>> split_budget("4GiB/machine", {"LOCAL_WORLD_SIZE": "4"})
1073741824
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from shorthaul.errors import LocalRanksError
from shorthaul.units import parse_bytes

_OF_MACHINE = "/machine"
_LAUNCHED = "LOCAL_WORLD_SIZE"  # set by torchrun
_WORLD = "WORLD_SIZE"


def split_budget(
    budget: int | str | None, environment: Mapping[str, str] = os.environ
) -> int | None:
    """Bytes for this process: all that is given, or an equal share of what is given for a machine."""
    if budget is None:
        return None
    if isinstance(budget, str) and budget.strip().endswith(_OF_MACHINE):
        machine_bytes = parse_bytes(budget.strip().removesuffix(_OF_MACHINE))
        return machine_bytes // _count(environment, budget)
    return parse_bytes(budget)


def count_local_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Processes of this job on this machine, as far as the launcher says so; 1 where it does not.

    >>> count_local_ranks({}), count_local_ranks({"LOCAL_WORLD_SIZE": "2"})
    (1, 2)
    """
    told = environment.get(_LAUNCHED, "")
    return int(told) if told.isdecimal() and int(told) > 0 else 1


def _count(environment: Mapping[str, str], budget: str) -> int:
    """The same where it must be known."""
    told = environment.get(_LAUNCHED)
    if told is None and environment.get(_WORLD, "1") in ("", "1"):
        return 1
    if told is None or not told.isdecimal() or int(told) == 0:
        raise LocalRanksError(budget, told)
    return int(told)
