"""Rows of a table on disk that are kept in memory, because they will be asked for again.

| policy          | keeps                                   | good for                               |
| ids, hottest .. | the rows that were named, no others     | graphs with known degrees; frequencies |
| "sieve"         | rows used again since the hand came by  | anything                               |
| "belady"        | rows that coming batches use soonest    | loaders that know their batches ahead  |

>>> cache = RowCache("sieve", budget_bytes=2048, row_bytes=512)
>>> cache.look_up(torch.tensor([3, 7])), cache.admit(torch.tensor([3, 7]))
(tensor([-1, -1]), tensor([0, 1]))
>>> cache.look_up(torch.tensor([7, 8]))
tensor([ 1, -1])

A batch is all different ids. Whoever holds the cache copies rows into and out of `rows`.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch

from shorthaul.errors import RowArgumentError
from shorthaul.interrupts import when_gone
from shorthaul.jit import CppSource, Function, Kernel, NumberArgument, can_use_kernels, load_kernel
from shorthaul.storage import BufferPool
from shorthaul.tensors.tables.disk.plain_cache import (
    PlainBelady,
    PlainCache,
    PlainSieve,
    PlainStatic,
)
from shorthaul.units import parse_bytes

Policy = Literal["sieve", "belady"]
_KINDS = {"static": 0, "sieve": 1, "belady": 2}

_TEXT = """\
// Which rows a cache keeps: static hot set, SIEVE, and Belady within a window of expected batches.
#include <algorithm>
#include "shorthaul/tensors/kernels/cache.h"

using namespace shorthaul;

void* cache_open(int64_t kind, int64_t capacity, void* hot, int64_t count) {
  if (kind == 0) return static_cast<RowCache*>(new StaticCache(capacity, static_cast<const int64_t*>(hot), count));
  if (kind == 1) return static_cast<RowCache*>(new SieveCache(capacity));
  return static_cast<RowCache*>(new BeladyCache(capacity));
}

void cache_close(void* cache) { delete static_cast<RowCache*>(cache); }

int64_t cache_look_up(void* cache, void* ids, int64_t count, void* slots) {
  return static_cast<RowCache*>(cache)->look_up(static_cast<const int64_t*>(ids), count, static_cast<int64_t*>(slots));
}

void cache_admit(void* cache, void* ids, int64_t count, void* slots) {
  static_cast<RowCache*>(cache)->admit(static_cast<const int64_t*>(ids), count, static_cast<int64_t*>(slots));
}

void cache_expect(void* cache, void* ids, int64_t count) {
  static_cast<RowCache*>(cache)->expect(static_cast<const int64_t*>(ids), count);
}

void cache_forget_expected(void* cache) { static_cast<RowCache*>(cache)->forget_expected(); }
"""


def emit_row_cache() -> CppSource:
    """The kernel that decides; it keeps its state behind the address that `cache_open` returns."""

    def function(name: str, arguments: str, returns: str = "nothing") -> Function:
        numbers = (
            NumberArgument(word.rstrip("*"), "address" if word.endswith("*") else "int64")
            for word in arguments.split()
        )
        return Function(name, tuple(numbers), returns)

    return CppSource(
        "row_cache",
        _TEXT,
        (
            function("cache_open", "kind capacity hot* count", "address"),
            function("cache_close", "cache*"),
            function("cache_look_up", "cache* ids* count slots*", "int64"),
            function("cache_admit", "cache* ids* count slots*"),
            function("cache_expect", "cache* ids* count"),
            function("cache_forget_expected", "cache*"),
        ),
    )


class RowCache:
    """Slots for rows within a budget, and the policy that fills them. Not for two threads at once."""

    def __init__(
        self, policy: Policy | torch.Tensor, *, budget_bytes: int | str, row_bytes: int
    ) -> None:
        hot_ids = torch.empty(0, dtype=torch.int64, device="cpu")
        if isinstance(policy, torch.Tensor):
            hot_ids, policy_name = policy.cpu().long().contiguous(), "static"
        else:
            policy_name = policy
        if policy_name not in _KINDS or (hot_ids.numel() and int(hot_ids.min()) < 0):
            raise RowArgumentError(
                "a row cache", "'sieve', 'belady' or the ids of the hot rows", repr(policy)
            )
        self.policy = policy_name
        self.row_bytes = row_bytes
        self.capacity = parse_bytes(budget_bytes) // max(1, row_bytes)
        if policy_name == "static":
            self.capacity = min(self.capacity, len(hot_ids))
        # Pages are taken up as rows come in: an unused cache costs no memory.
        length_bytes = max(1, self.capacity * row_bytes)
        self._pool = BufferPool(length_bytes + 2**21, why="row cache")
        buffer = self._pool.take(length_bytes)
        self.rows = buffer.tensor(torch.uint8, (self.capacity, row_bytes))
        self._plain: PlainCache | None = None
        if can_use_kernels("row caches"):
            self._address: int = _kernel().cache_open(
                _KINDS[policy_name], self.capacity, hot_ids.data_ptr(), len(hot_ids)
            )
            when_gone(self, _kernel().cache_close.compiled, self._address)
        elif policy_name == "static":
            self._plain = PlainStatic(self.capacity, hot_ids.tolist())
        else:
            self._plain = (PlainSieve if policy_name == "sieve" else PlainBelady)(self.capacity)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """The slot of each id, or -1 where it is missing."""
        if self._plain is not None:
            return torch.tensor(self._plain.look_up(ids.tolist()), dtype=torch.int64, device="cpu")
        slots = torch.empty_like(ids)
        _kernel().cache_look_up(self._address, ids.data_ptr(), len(ids), slots.data_ptr())
        return slots

    def admit(self, ids: torch.Tensor) -> torch.Tensor:
        """The slot for each missing id, or -1 where it gets none."""
        if self._plain is not None:
            return torch.tensor(self._plain.admit(ids.tolist()), dtype=torch.int64, device="cpu")
        slots = torch.empty_like(ids)
        _kernel().cache_admit(self._address, ids.data_ptr(), len(ids), slots.data_ptr())
        return slots

    def expect(self, ids: torch.Tensor) -> None:
        """A later batch, after those expected before, will ask for `ids`."""
        if self._plain is not None:
            self._plain.expect(ids.tolist())
        else:
            _kernel().cache_expect(self._address, ids.data_ptr(), len(ids))

    def forget_expected(self) -> None:
        """What was expected will not come: a loader stopped early."""
        if self._plain is not None:
            self._plain.forget_expected()
        else:
            _kernel().cache_forget_expected(self._address)

    def __repr__(self) -> str:
        return f"RowCache({self.policy}, {self.capacity:,} rows of {self.row_bytes:,} bytes)"


@functools.cache
def _kernel() -> Kernel:
    return load_kernel(emit_row_cache())
