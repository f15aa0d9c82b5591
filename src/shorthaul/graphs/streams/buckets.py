"""Which edges are sorted together: runs of keys whose edges fit in memory. Pure plans.

>>> blocks = plan_blocks(keys=1000, most_blocks=4)
>>> blocks.starts.tolist()
[0, 256, 512, 768, 1000]
>>> counts = blocks.count(torch.tensor([3, 3, 300, 999]))
>>> plan_buckets(blocks, counts, most_edges=3, most_keys=600).blocks.starts.tolist()
[0, 512, 1000]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_FINER = 1024  # pieces that a block with too many edges is cut into


@dataclass(frozen=True, eq=False)
class Blocks:
    """Keys in runs: block `b` has those from `starts[b]` to `starts[b + 1]`."""

    starts: torch.Tensor  # (blocks + 1,) int64, ascending
    shift: int | None = None  # where a key's block is the key without its lowest bits

    def number(self, keys: torch.Tensor) -> torch.Tensor:
        """(keys,) int64: the block of each key."""
        if self.shift is not None:
            return keys >> self.shift
        return torch.bucketize(keys, self.starts[1:-1], right=True)

    def count(self, keys: torch.Tensor) -> torch.Tensor:
        """(blocks,) int64: how many keys each block has."""
        return torch.bincount(self.number(keys), minlength=len(self.starts) - 1)


@dataclass(frozen=True, eq=False)
class Buckets:
    """Blocks that are sorted one at a time."""

    blocks: Blocks
    edges: torch.Tensor  # (buckets + 1,) int64: how many edges come before each


def plan_blocks(keys: int, most_blocks: int) -> Blocks:
    """All keys in equal blocks, whose width is a power of two."""
    shift = max(0, (max(1, keys) - 1).bit_length() - (most_blocks.bit_length() - 1))
    starts = torch.arange(0, max(1, keys), 1 << shift, dtype=torch.int64, device="cpu")
    return Blocks(torch.cat([starts, starts.new_tensor([keys])]), shift)


def find_finer_blocks(blocks: Blocks, counts: torch.Tensor, most_edges: int) -> Blocks | None:
    """The same, but with those cut that have too many edges; `None` where none can be cut."""
    widths = blocks.starts.diff()
    is_cut = (counts > most_edges) & (widths > 1)
    if not bool(is_cut.any()):
        return None
    cuts = [
        torch.arange(
            start, start + width, max(1, -(-width // _FINER)), dtype=torch.int64, device="cpu"
        )
        for start, width in zip(
            blocks.starts[:-1][is_cut].tolist(), widths[is_cut].tolist(), strict=True
        )
    ]
    return Blocks(torch.unique(torch.cat([blocks.starts, *cuts])))


def plan_buckets(
    blocks: Blocks, counts: torch.Tensor, *, most_edges: int, most_keys: int
) -> Buckets:
    """Blocks in succession joined as long as they have no more edges and keys than that.

    A block that has more by itself is a bucket of its own.
    """
    before = torch.zeros(len(counts) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counts, 0, out=before[1:])
    firsts, first, last = [0], 0, len(counts)
    while first < last:
        within = min(
            int(torch.searchsorted(before, int(before[first]) + most_edges, right=True)) - 1,
            int(
                torch.searchsorted(blocks.starts, int(blocks.starts[first]) + most_keys, right=True)
            )
            - 1,
        )
        first = min(max(within, first + 1), last)
        firsts.append(first)
    chosen = torch.tensor(firsts, dtype=torch.int64, device="cpu")
    return Buckets(Blocks(blocks.starts[chosen]), before[chosen])
