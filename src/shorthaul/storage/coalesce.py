"""A pure plan from wanted byte ranges to few, sorted, aligned reads that hold each byte once.

>>> plan = plan_reads(
...     [9000, 0, 8600, 0],
...     [100, 400, 400, 400],
...     alignment_bytes=512,
...     largest_gap_bytes=1024,
...     largest_request_bytes=1 << 20,
... )
>>> plan.request_offsets_bytes.tolist(), plan.request_lengths_bytes.tolist()
([0, 8192], [512, 1024])
>>> plan.range_requests.tolist(), plan.range_offsets_bytes.tolist()
([1, 0, 1, 0], [808, 0, 408, 0])
>>> plan.range_positions_bytes.tolist()  # in a target that holds the requests one after another
[1320, 0, 920, 0]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """Which requests to make, and where each wanted range will lie in them."""

    request_offsets_bytes: Int64Array  # in the file, ascending
    request_lengths_bytes: Int64Array  # of each
    request_positions_bytes: Int64Array  # in a target that holds the requests one after another
    range_requests: Int64Array  # for each wanted range, in the order given: its request
    range_offsets_bytes: Int64Array  # and where it begins inside that request
    gap_bytes: int  # read only because two ranges were merged across them

    @property
    def read_bytes(self) -> int:
        """Bytes that the requests read together: what a target must hold."""
        return int(self.request_lengths_bytes.sum())

    @property
    def range_positions_bytes(self) -> Int64Array:
        """Where each wanted range begins in a target that holds the requests one after another."""
        positions: Int64Array = self.request_positions_bytes[self.range_requests]
        return positions + self.range_offsets_bytes


def plan_reads(
    offsets_bytes: npt.ArrayLike,
    lengths_bytes: npt.ArrayLike,
    *,
    alignment_bytes: int,
    largest_gap_bytes: int,
    largest_request_bytes: int,
    largest_waste: float | None = None,
    end_bytes: int | None = None,
) -> ReadPlan:
    """Plan the reads that bring in every range.

    No byte is read twice, except where `largest_request_bytes` cuts a merge between two ranges that
    overlap or share an aligned block.

    Args:
        offsets_bytes: Where each range begins.
        lengths_bytes: How long each is, or one length for all.
        alignment_bytes: Requests begin and end at multiples of it.
        largest_gap_bytes: Two ranges are merged when at most this lies between their aligned ends.
        largest_request_bytes: And when together they stay within this; a longer range has a request
            of its own.
        largest_waste: Bounds all gaps together, as a share of the bytes that are needed: the
            smallest are bridged first. None (default) for no bound.
        end_bytes: The size of the file, where the last request may end unaligned; None by default.
    """
    offsets, lengths = _as_ranges(offsets_bytes, lengths_bytes, end_bytes)
    if alignment_bytes < 1 or largest_gap_bytes < 0 or largest_request_bytes < 1:
        raise ValueError(
            "alignment_bytes and largest_request_bytes must be positive and largest_gap_bytes not "
            f"negative, got {alignment_bytes}, {largest_request_bytes}, {largest_gap_bytes}"
        )
    if len(offsets) == 0:
        nothing = np.zeros(0, np.int64)
        return ReadPlan(nothing, nothing, nothing, nothing, nothing, 0)
    order = np.argsort(offsets)
    sorted_offsets = offsets[order]
    starts = sorted_offsets // alignment_bytes * alignment_bytes
    ends = -(-(sorted_offsets + lengths[order]) // alignment_bytes) * alignment_bytes
    if end_bytes is not None:
        np.minimum(ends, end_bytes, out=ends)
    # Ranges that begin in the same block are one, as long as the longest: repeated rows end here.
    is_first = np.append(True, starts[1:] != starts[:-1])
    block_of_sorted = np.cumsum(is_first) - 1
    block_firsts = np.flatnonzero(is_first)
    starts = starts[block_firsts]
    ends = np.maximum.reduceat(ends, block_firsts)
    reaches = np.maximum.accumulate(ends)  # how far the blocks so far reach together
    gaps = starts[1:] - reaches[:-1]  # negative where they overlap
    needed_bytes = int(reaches[-1] - starts[0] - gaps[gaps > 0].sum())
    bridged = _bridge(gaps, largest_gap_bytes, largest_waste, needed_bytes)
    firsts = _cut(starts, reaches, bridged, largest_request_bytes)

    request_offsets = starts[firsts]
    request_ends = reaches[np.append(firsts[1:], len(starts)) - 1]
    request_lengths = request_ends - request_offsets
    request_of_block = np.zeros(len(starts), np.int64)
    request_of_block[firsts[1:]] = 1
    np.cumsum(request_of_block, out=request_of_block)
    range_requests = np.empty_like(offsets)
    range_requests[order] = request_of_block[block_of_sorted]
    is_merged = np.ones(len(gaps), bool)
    is_merged[firsts[1:] - 1] = False
    return ReadPlan(
        request_offsets,
        request_lengths,
        np.cumsum(request_lengths) - request_lengths,
        range_requests,
        offsets - request_offsets[range_requests],
        int(gaps[is_merged & (gaps > 0)].sum()),
    )


def _as_ranges(
    offsets_bytes: npt.ArrayLike, lengths_bytes: npt.ArrayLike, end_bytes: int | None
) -> tuple[Int64Array, Int64Array]:
    offsets = np.asarray(offsets_bytes)
    lengths = np.asarray(lengths_bytes)
    for name, values in (("offsets_bytes", offsets), ("lengths_bytes", lengths)):
        if values.size and not np.issubdtype(values.dtype, np.integer):
            raise TypeError(f"{name} must be whole numbers, got {values.dtype}")
    offsets = offsets.astype(np.int64, copy=False)
    lengths = np.broadcast_to(lengths.astype(np.int64, copy=False), offsets.shape)
    if offsets.ndim != 1:
        raise ValueError(f"offsets_bytes must have one dimension, got shape {offsets.shape}")
    if len(offsets) and (offsets.min() < 0 or lengths.min() < 1):
        raise ValueError(
            "offsets must not be negative and lengths must be positive, got an offset of "
            f"{offsets.min()} and a length of {lengths.min()}"
        )
    if end_bytes is not None and len(offsets):
        beyond = np.flatnonzero(offsets + lengths > end_bytes)
        if len(beyond):
            first = beyond[0]
            raise ValueError(
                f"range {first} ends at byte {offsets[first] + lengths[first]:,}, but the file "
                f"ends at {end_bytes:,}"
            )
    return offsets, lengths


def _bridge(
    gaps: Int64Array, largest_gap_bytes: int, largest_waste: float | None, needed_bytes: int
) -> npt.NDArray[np.bool_]:
    """For each two neighbors, whether they may share a request."""
    bridged: npt.NDArray[np.bool_] = gaps <= largest_gap_bytes
    if largest_waste is None:
        return bridged
    costly = np.flatnonzero(bridged & (gaps > 0))
    by_size = costly[np.argsort(gaps[costly], kind="stable")]
    is_too_much = np.cumsum(gaps[by_size]) > largest_waste * needed_bytes
    bridged[by_size[is_too_much]] = False
    return bridged


def _cut(
    starts: Int64Array,
    reaches: Int64Array,
    bridged: npt.NDArray[np.bool_],
    largest_request_bytes: int,
) -> Int64Array:
    """The block that begins each request."""
    count = len(starts)
    firsts = np.append(0, np.flatnonzero(~bridged) + 1)
    lasts = np.append(firsts[1:], count) - 1
    if (reaches[lasts] - starts[firsts]).max() <= largest_request_bytes:
        return firsts
    # Some merges are too long. A request that begins with block i takes every following block that
    # stays within the limit, or within block i itself when that alone is longer.
    limits = np.maximum(starts + largest_request_bytes, reaches)
    following = np.searchsorted(reaches, limits, side="right")
    group_ends = np.repeat(lasts + 1, lasts + 1 - firsts)
    steps = np.minimum(following, group_ends).tolist()
    cuts = []
    position = 0
    while position < count:
        cuts.append(position)
        position = steps[position]
    return np.asarray(cuts, np.int64)
