"""Sums over rows of many ranks: owners add up what is theirs where that is fewer bytes than the rows.

::

    counts                 of ids to add up, and of sums, for each rank: 16 bytes
    ids, lengths, weights  to the owners of rows that are added up there
    sums                   back
    rows                   of all other ids, in a round as for any gather
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.sum_plan import SumPlan
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.tensors.tables.table import HostTable

_COUNT_BYTES = 16


def exchange_sums(
    wire: Wire,
    plan: SumPlan,
    ids: torch.Tensor,
    weights: torch.Tensor | None,
    serve: Callable[[torch.Tensor], torch.Tensor],
    traffic: Traffic,
) -> torch.Tensor:
    """A row for each of `plan.segments`: the sums that the owners made.

    `ids` and `weights` are those of the plan's pairs, in their order.
    """
    ranks = wire.world.ranks
    told = torch.tensor([plan.pairs, plan.sums], dtype=torch.int64, device="cpu").t().contiguous()
    heard = wire.exchange(told, [1] * ranks, [1] * ranks)
    pairs, sums = heard[:, 0].tolist(), heard[:, 1].tolist()
    their_ids = wire.exchange(ids, plan.pairs, pairs)
    sent_bytes, received_bytes = ids.nbytes, their_ids.nbytes
    lengths = plan.lengths.int()
    their_lengths = wire.exchange(lengths, plan.sums, sums)
    sent_bytes, received_bytes = sent_bytes + lengths.nbytes, received_bytes + their_lengths.nbytes
    their_weights = None
    if weights is not None:
        their_weights = wire.exchange(weights, plan.pairs, pairs)
        sent_bytes += weights.nbytes
        received_bytes += their_weights.nbytes
    distinct, places = torch.unique(their_ids.long(), return_inverse=True)
    pointers = torch.zeros(len(their_lengths) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(their_lengths, 0, out=pointers[1:])
    made = HostTable(serve(distinct)).gather_reduce(pointers, places, "sum", their_weights)
    found = wire.exchange(made, sums, plan.sums)
    traffic.add(served_sums=len(made), far_sums=len(found))
    traffic.note_round(
        received_bytes + found.nbytes + _COUNT_BYTES * (ranks - 1),
        sent_bytes + made.nbytes + _COUNT_BYTES * (ranks - 1),
    )
    return found
