"""Where the rows of some ids come from: this machine's files, the hot rows, or other ranks.

>>> place = Placement((0, 2, 4), (0, 2, 4), (0,), torch.tensor([3]))
>>> plan = plan_gather(torch.tensor([3, 0, 2, 0]), place)
>>> plan.ids, plan.inverse, plan.near
(tensor([0, 2, 3]), tensor([2, 0, 1, 0]), ((0, 0, 1),))
>>> plan.far_ids, plan.hot_rows
(tensor([2]), tensor([0]))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Placement:
    """Who has which rows of one table, as one rank sees it."""

    rank_offsets: tuple[int, ...]  # where the rows of each rank begin, and the number of rows
    part_offsets: tuple[int, ...]  # the same of parts
    near_parts: tuple[int, ...]  # those whose files this rank reads
    hot_ids: torch.Tensor  # ascending: rows that this rank has a copy of


@dataclass(frozen=True, eq=False)
class GatherPlan:
    """One gather, sorted out."""

    ids: torch.Tensor  # those asked for, ascending, each once
    inverse: torch.Tensor  # for each id as it was given, its position in `ids`
    near: tuple[tuple[int, int, int], ...]  # part, and its range of positions in `ids`
    hot_at: torch.Tensor  # positions in `ids` of those that are hot and not near
    hot_rows: torch.Tensor  # and in `hot_ids`
    far_at: torch.Tensor  # positions in `ids` of those that other ranks are asked for
    far_ids: torch.Tensor  # those, ascending


def plan_gather(ids: torch.Tensor, place: Placement) -> GatherPlan:
    """Sort out ids that are checked already: int64, none negative."""
    unique, inverse = torch.unique(ids, return_inverse=True)
    ends = torch.searchsorted(unique, _as_tensor(place.part_offsets)).tolist()
    near = tuple(
        (part, ends[part], ends[part + 1])
        for part in place.near_parts
        if ends[part] < ends[part + 1]
    )
    is_far = torch.ones(len(unique), dtype=torch.bool, device="cpu")
    for _, start, stop in near:
        is_far[start:stop] = False
    far_at = is_far.nonzero()[:, 0]
    far_ids = unique[far_at]
    hot_rows = torch.searchsorted(place.hot_ids, far_ids)
    is_hot = torch.zeros(len(far_ids), dtype=torch.bool, device="cpu")
    if len(place.hot_ids):
        last = len(place.hot_ids) - 1
        is_hot = place.hot_ids[hot_rows.clamp(max=last)] == far_ids
    asked = far_ids[~is_hot]
    return GatherPlan(
        unique, inverse, near, far_at[is_hot], hot_rows[is_hot], far_at[~is_hot], asked
    )


def count_by_rank(ids: torch.Tensor, place: Placement) -> list[int]:
    """How many of ids that ascend each rank is asked for.

    >>> count_by_rank(torch.tensor([0, 1, 5]), Placement((0, 2, 4, 6), (0, 6), (), torch.tensor([])))
    [2, 0, 1]
    """
    found: list[int] = torch.searchsorted(ids, _as_tensor(place.rank_offsets)).diff().tolist()
    return found


def _as_tensor(offsets: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int64, device="cpu")
