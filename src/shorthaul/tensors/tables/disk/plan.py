"""From row numbers to reads: pure plans, in pieces that fit the buffers they are read into.

>>> import torch
>>> from pathlib import Path
>>> layout = DiskLayout(Path("features"), 0, torch.float32, (100, 128), 512)
>>> plan = plan_rows(layout, np.array([7, 3, 8, 3]), alignment_bytes=512, end_bytes=51200)
>>> plan.order.tolist(), plan.unique_rows
([1, 3, 0, 2], 3)
>>> [(each.requests, each.ranges) for each in plan.pieces(buffer_bytes=1024)]
[(slice(0, 1, None), slice(0, 4, None))]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shorthaul.storage.coalesce import Int64Array, ReadPlan, plan_reads
from shorthaul.tensors.files.layout import DiskLayout

# A request costs a disk as much as some 16 KiB of bandwidth, and a processor some microseconds, so
# rows this close together are read as one.
LARGEST_GAP_BYTES = 8192
LARGEST_REQUEST_BYTES = 2**18


@dataclass(frozen=True)
class Piece:
    """Requests that are read into one buffer, and the wanted rows that they hold."""

    requests: slice
    ranges: slice  # of the sorted ids
    length_bytes: int


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Which reads bring in the rows of one gather; ids are sorted, so a piece has a run of them."""

    order: Int64Array  # where in the gather each sorted id came from
    sorted_ids: Int64Array
    is_first: np.ndarray[tuple[int], np.dtype[np.bool_]]  # of equal sorted ids
    reads: ReadPlan

    @property
    def unique_rows(self) -> int:
        """How many different rows there are."""
        return int(self.is_first.sum())

    def pieces(self, buffer_bytes: int) -> Iterator[Piece]:
        """The requests cut into runs of at most `buffer_bytes`, or of one request that is longer."""
        stops = self.reads.request_positions_bytes + self.reads.request_lengths_bytes
        count = len(stops)
        begin = first = 0
        while begin < count:
            start = self.reads.request_positions_bytes[begin]
            end = max(begin + 1, int(np.searchsorted(stops, start + buffer_bytes, "right")))
            last = int(np.searchsorted(self.reads.range_requests, end, "left"))
            yield Piece(slice(begin, end), slice(first, last), int(stops[end - 1] - start))
            begin, first = end, last

    def positions_bytes(self, piece: Piece) -> Int64Array:
        """Where each row of a piece begins in the piece's buffer."""
        start = self.reads.request_positions_bytes[piece.requests.start]
        requests = self.reads.range_requests[piece.ranges]
        positions: Int64Array = self.reads.request_positions_bytes[requests] - start
        return positions + self.reads.range_offsets_bytes[piece.ranges]

    def rows_of_request(self, piece: Piece, number: int) -> list[int]:
        """The different rows that lie in the `number`th request of a piece."""
        is_there = self.reads.range_requests[piece.ranges] == piece.requests.start + number
        return [int(each) for each in np.unique(self.sorted_ids[piece.ranges][is_there])]


def plan_rows(
    layout: DiskLayout, ids: Int64Array, *, alignment_bytes: int, end_bytes: int
) -> RowPlan:
    """The reads for the rows `ids` of a table; repeated ids are read once."""
    order = np.argsort(ids)
    sorted_ids = ids[order]
    is_first = np.ones(len(ids), bool)
    np.not_equal(sorted_ids[1:], sorted_ids[:-1], out=is_first[1:])
    reads = plan_reads(
        layout.offset_bytes + sorted_ids * layout.row_stride_bytes,
        layout.row_bytes,
        alignment_bytes=alignment_bytes,
        largest_gap_bytes=LARGEST_GAP_BYTES,
        largest_request_bytes=LARGEST_REQUEST_BYTES,
        end_bytes=end_bytes,
    )
    return RowPlan(order, sorted_ids, is_first, reads)
