"""The seeds of all ranks together: the same list on each, or each its own."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from shorthaul.distributed.parts import Parts
from shorthaul.distributed.ranks.agreement import share_problem
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.errors import RankDisagreementError, SamplingError, SeedRangeError, ShorthaulError
from shorthaul.graphs.edge_tensors import read_numbers

_EITHER = "Give the same seeds on every rank, or on each rank seeds that no other has."


def read_seeds(parts: Parts, seeds: Any) -> torch.Tensor:
    """What a user gave, as global ids under the parts' numbers."""
    book = parts.book
    if seeds is None:
        found = [parts.seeds(kind) + book.starts[kind] for kind in parts.manifest.seeds]
        if not found:
            raise SamplingError(
                "no seeds: the graph was cut without them.\n"
                "  Give seeds=, global ids or a node type with ids within it."
            )
        return torch.cat(found)
    if isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        ids = read_numbers(seeds[1], "seeds").long()
        count, start = book.count(seeds[0]), book.starts[seeds[0]]
    else:
        ids = read_numbers(seeds, "seeds").long()
        count, start = book.nodes, 0
    wrong = ((ids < 0) | (ids >= count)).nonzero()
    if len(wrong):
        at = int(wrong[0, 0])
        raise SeedRangeError(int(ids[at]), at, count)
    return ids + start


def agree_on_seeds(wire: Wire, parts: Parts, seeds: Any) -> torch.Tensor:
    """One list on all ranks: that which all gave, or all lists one after the other."""
    problem: ShorthaulError | None = None
    mine = torch.empty(0, dtype=torch.int64, device="cpu")
    try:
        mine = read_seeds(parts, seeds)
    except ShorthaulError as error:
        problem = error
    share_problem(wire, problem, parts.described)
    digest = hashlib.sha256(mine.numpy().tobytes()).hexdigest()
    if len(set(wire.gather_texts(digest))) == 1:
        return mine
    told = [each.view(torch.int64) for each in wire.gather_bytes(mine.view(torch.uint8))]
    together = torch.cat(told)
    if len(torch.unique(together)) < sum(len(torch.unique(each)) for each in told):
        wire.is_agreed = True
        raise RankDisagreementError(
            "the seeds, which overlap",
            {rank: f"{len(each):,} seeds" for rank, each in enumerate(told)},
            _EITHER,
        )
    return together
