"""The published adaptive rule, reproduced for comparison: `policy="ssdtrain"`.

SSDTrain profiles one iteration and then offloads a prefix of the model's scopes, in post-order, and
keeps the rest. Scope k is offloaded while the disk can write everything before it and itself, and
read itself back, in the time from the start of the step down to k's own backward pass::

    V_k = sum(S_i, i before k) + 2 * S_k
    T_k = 3 * T_f - 2 * sum(t_i, i before k)        # backward taken as twice the forward
    keep from the first k on with  V_k / T_k > bandwidth

It knows no budget of bytes, takes one bandwidth for both directions and decides once; see
`planner` for what is used by default. Its bandwidth counts bytes before the size filter, which
over-estimates it; `estimate_ssdtrain_bandwidth` is that same estimate.

>>> scopes = [Scope("block 0", 1.0, 100), Scope("block 1", 1.0, 100), Scope("block 2", 1.0, 100)]
>>> [each.value for each in choose_ssdtrain(scopes, bytes_per_second=50.0)]
['offload', 'offload', 'keep']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shorthaul.errors import PlanError
from shorthaul.offload.policy.simulation import Decision


@dataclass(frozen=True)
class Scope:
    """One module, as profiled: its own forward time and the bytes that it packs."""

    name: str
    forward_seconds: float  # t_i
    packed_bytes: int  # S_i


def choose_ssdtrain(
    scopes: Sequence[Scope],
    *,
    bytes_per_second: float,
    forward_seconds: float | None = None,
) -> tuple[Decision, ...]:
    """A decision for each scope, given in post-order: offload a prefix, keep from there on.

    `forward_seconds` is T_f, the whole forward pass; without it, the sum of the scopes.
    """
    if not bytes_per_second > 0:
        raise PlanError(f"expected a positive bandwidth, got {bytes_per_second} bytes/s.")
    whole_seconds = (
        sum(scope.forward_seconds for scope in scopes)
        if forward_seconds is None
        else forward_seconds
    )
    before_bytes, before_seconds = 0, 0.0
    for index, scope in enumerate(scopes):
        volume_bytes = before_bytes + 2 * scope.packed_bytes
        window_seconds = 3 * whole_seconds - 2 * before_seconds
        if volume_bytes > bytes_per_second * window_seconds:
            return (Decision.OFFLOAD,) * index + (Decision.KEEP,) * (len(scopes) - index)
        before_bytes += scope.packed_bytes
        before_seconds += scope.forward_seconds
    return (Decision.OFFLOAD,) * len(scopes)


def estimate_ssdtrain_bandwidth(deduplicated_bytes: int, store_seconds: float) -> float:
    """BW of the rule: all unique packed bytes over the time from first to last store."""
    if not store_seconds > 0:
        raise PlanError(
            f"expected a positive time from first to last store, got {store_seconds} s."
        )
    return deduplicated_bytes / store_seconds
