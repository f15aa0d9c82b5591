"""What happened to saved tensors so far."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field, replace


@dataclass
class Counts:
    """Tensors and bytes, by what became of them; `report` shows them."""

    offloaded: int = 0
    offloaded_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    kept_and_written: int = 0  # kept at first, and written when the room was needed for others
    deduplicated: int = 0
    deduplicated_bytes: int = 0
    forwarded: int = 0  # used while their store was still under way
    forwarded_bytes: int = 0
    cancelled_stores: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    prefetched: int = 0
    demand_reads: int = 0
    found_alive: int = 0  # needed again while somebody else still held the memory
    refused_stores: int = 0  # the disk took no more or failed; kept in memory instead
    peak_live_bytes: int = 0
    peak_mapped_bytes: int = 0  # the same with buffers that are mapped and free
    peak_saved_bytes: int = 0  # what would have been live if everything had been kept
    compressed: int = 0
    compressed_bytes: int = 0  # saved by compression
    packed: int = 0  # compressed, and held in memory instead of on disk
    packed_bytes: int = 0  # what they take there
    recomputed_regions: int = 0
    stall_seconds: float = 0.0  # waited for the disk
    worst_activation_error: float = 0.0  # of those that a lossy codec packed and that were compared
    left_alone: collections.Counter[str] = field(default_factory=collections.Counter)

    def copy(self) -> Counts:
        """The counts as they are now."""
        return replace(self, left_alone=self.left_alone.copy())
