"""One round in which every rank asks others for rows and sends the rows that it is asked for.

::

    32 bytes to each rank    is all well, what is exchanged, how many ids will follow
    ids to their owners      4 bytes each where the table has fewer than 2^31 rows
    rows back                as the wire format has them

Whoever has an error of its own says so in the first step, so that all ranks stop there together.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shorthaul.distributed.ranks.agreement import require_equal, share_problem
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.tables.wire_format import WireFormat

HEADER_NUMBERS = 4
HEADER_BYTES = 8 * HEADER_NUMBERS
_IN_STEP = "Ask for rows in the same order on every rank, and as often: a gather is a collective."


@dataclass(frozen=True)
class Round:
    """What all ranks must mean when they exchange."""

    what: str  # in words that are the same on every rank
    number: int
    parts: str  # this rank's, for errors


def announce(
    wire: Wire, this: Round, counts: list[int], problem: BaseException | None
) -> list[int]:
    """How many ids each rank will send here; raises on every rank if any has a problem."""
    ranks = wire.world.ranks
    own = [int(problem is not None), zlib.crc32(this.what.encode()), this.number]
    told = [[*own, count] for count in counts or [0] * ranks]
    mine = torch.tensor(told, dtype=torch.int64, device="cpu")
    heard = wire.exchange(mine, [1] * ranks, [1] * ranks).tolist()
    if any(status for status, *_ in heard):
        share_problem(wire, problem, this.parts, is_known_by_all=True)
    if len({(kind, number) for _, kind, number, _ in heard}) > 1:
        told_by_all = f"{this.what}, round {this.number:,}"
        require_equal(wire, "what is exchanged", told_by_all, _IN_STEP)
    return [count for *_, count in heard]


def exchange_rows(
    wire: Wire,
    asked: torch.Tensor,
    counts: list[int],
    wanted: list[int],
    form: WireFormat,
    serve: Callable[[torch.Tensor], torch.Tensor],
    traffic: Traffic,
) -> torch.Tensor:
    """The bytes of the rows of `asked`, ids in the order of their owners; `serve` gives this rank's rows.

    `counts` says how many ids go to each rank, `wanted` how many come from each.
    """
    ids = wire.exchange(asked, counts, wanted)
    rows = serve(ids.long())
    data = form.encode(rows)
    traffic.note_error(form.error_of(rows, data))
    received = wire.exchange(data, wanted, counts)
    header_bytes = HEADER_BYTES * (wire.world.ranks - 1)
    traffic.add(exchanges=1, served_rows=len(ids), far_rows=len(asked))
    traffic.note_round(
        header_bytes + ids.nbytes + received.nbytes, header_bytes + asked.nbytes + data.nbytes
    )
    return received
