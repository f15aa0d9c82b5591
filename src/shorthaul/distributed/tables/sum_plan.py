"""Which owners send rows, and which send sums of theirs, when segments of ids are added up.

>>> place = Placement((0, 2, 8), (0, 2, 8), (0,), torch.empty(0, dtype=torch.int64))
>>> ids, pointers = torch.tensor([0, 2, 3, 4, 5, 6]), torch.tensor([0, 3, 6])
>>> plan = plan_sums(pointers, ids, place, row_bytes=400, sum_bytes=400, pair_bytes=4)
>>> plan.is_partial.tolist(), plan.pairs, plan.lengths.tolist()
([False, True, True, True, True, True], [0, 5], [2, 3])

Rank 1 would send five rows; it sends two sums instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.distributed.tables.gather_plan import Placement
from shorthaul.errors import RowArgumentError
from shorthaul.tensors.kernels.host_kernels import require_ids

_LENGTH_BYTES = 4


@dataclass(frozen=True, eq=False)
class SumPlan:
    """One reduction, sorted out; what is asked of owners comes in their order."""

    is_partial: torch.Tensor  # for each id whether its owner adds it up
    order: torch.Tensor  # positions of these ids, by owner and then by segment
    pairs: list[int]  # how many of them each rank adds up
    segments: torch.Tensor  # the segment of each sum that comes back
    lengths: torch.Tensor  # of how many ids each of these sums is
    sums: list[int]  # how many sums each rank sends back


def plan_sums(
    pointers: torch.Tensor,
    ids: torch.Tensor,
    place: Placement,
    *,
    row_bytes: int,
    sum_bytes: int,
    pair_bytes: int,
) -> SumPlan:
    """Choose for each owner what is fewer bytes on the wire, both directions together.

    `row_bytes` are those of a row with its id, `sum_bytes` of a sum, `pair_bytes` of an id, with its
    weight, that is added up elsewhere.
    """
    ranks = len(place.rank_offsets) - 1
    starts = torch.tensor(place.rank_offsets[1:-1], dtype=torch.int64, device="cpu")
    owners = torch.bucketize(ids, starts, right=True)
    segments = torch.repeat_interleave(pointers.diff())
    is_far = ~_is_here(ids, place)
    is_partial = torch.zeros_like(is_far)
    for rank in range(ranks):
        asked = is_far & (owners == rank)
        rows = len(torch.unique(ids[asked]))
        sums = len(torch.unique_consecutive(segments[asked]))
        by_sums = int(asked.sum()) * pair_bytes + sums * (sum_bytes + _LENGTH_BYTES)
        if by_sums < rows * row_bytes:
            is_partial |= asked
    at = is_partial.nonzero()[:, 0]
    order = at[torch.argsort(owners[at], stable=True)]
    keys = owners[order] * len(pointers) + segments[order]
    distinct, lengths = torch.unique_consecutive(keys, return_counts=True)
    return SumPlan(
        is_partial,
        order,
        torch.bincount(owners[order], minlength=ranks).tolist(),
        distinct % len(pointers),
        lengths,
        torch.bincount(distinct // len(pointers), minlength=ranks).tolist(),
    )


def require_sums(
    pointers: torch.Tensor,
    ids: torch.Tensor,
    op: str,
    weights: torch.Tensor | None,
    dtype: torch.dtype,
) -> None:
    """Refuse arguments of `gather_reduce` that do not fit together."""
    if op not in ("sum", "mean"):
        raise RowArgumentError("op", "one of sum, mean", repr(op))
    if dtype not in (torch.float32, torch.float64):
        raise RowArgumentError(
            "a table that is added up over ranks", "torch.float32 or torch.float64", str(dtype)
        )
    require_ids(pointers)
    is_right = (
        len(pointers) > 0
        and int(pointers[0]) == 0
        and int(pointers[-1]) == len(ids)
        and bool((pointers.diff() >= 0).all())
    )
    if not is_right:
        raise RowArgumentError(
            "pointers", f"ascending from 0 to the number of ids, {len(ids):,}", "others"
        )
    if weights is not None and (weights.shape != ids.shape or not weights.is_floating_point()):
        raise RowArgumentError(
            "weights",
            f"{len(ids):,} floating-point numbers, one for each id",
            f"{weights.dtype} of shape {tuple(weights.shape)}",
        )


def narrow_pointers(pointers: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """Where segments begin when only some of their ids are kept.

    >>> narrow_pointers(torch.tensor([0, 2, 2, 3]), torch.tensor([True, False, True])).tolist()
    [0, 1, 1, 2]
    """
    kept = torch.zeros(len(is_kept) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(is_kept, 0, out=kept[1:])
    return kept[pointers]


def _is_here(ids: torch.Tensor, place: Placement) -> torch.Tensor:
    """Ids whose rows need not be asked for: near ones and hot ones."""
    is_here = torch.isin(ids, place.hot_ids)
    for part in place.near_parts:
        first, stop = place.part_offsets[part], place.part_offsets[part + 1]
        is_here |= (ids >= first) & (ids < stop)
    return is_here
