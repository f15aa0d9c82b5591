"""Last-hop aggregation in plain torch and ours, for `bench_last_hop.py`; each in a fresh process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import shorthaul as sh
from shorthaul.tensors.tables.quantized import quantize

Run = Callable[[], torch.Tensor]


def _load(inputs: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    saved: dict[str, Any] = torch.load(inputs, weights_only=True)
    return saved["table"], saved["ids"], saved["pointers"]


def make_embedding_bag(inputs: str) -> Run:
    """The fused one of torch, on the whole table."""
    table, ids, pointers = _load(inputs)
    return lambda: torch.nn.functional.embedding_bag(ids, table, pointers[:-1], mode="mean")


def make_spmm(inputs: str) -> Run:
    """Rows gathered once each, then a sparse matrix times them."""
    table, ids, pointers = _load(inputs)
    sources, local = torch.unique(ids, return_inverse=True)
    shares = (1 / pointers.diff().clamp(min=1)).repeat_interleave(pointers.diff())
    shape = (len(pointers) - 1, len(sources))
    matrix = torch.sparse_csr_tensor(pointers, local, shares, shape, check_invariants=False)
    return lambda: matrix @ table[sources]


def make_segment_reduce(inputs: str) -> Run:
    """A row for each edge, then the mean of each segment."""
    table, ids, pointers = _load(inputs)
    return lambda: torch.segment_reduce(table[ids], "mean", offsets=pointers, axis=0)


def make_shorthaul(inputs: str) -> Run:
    """Fused, on the whole table."""
    table, ids, pointers = _load(inputs)
    unified = sh.unified(table)
    return lambda: unified.gather_reduce(pointers, ids, "mean")


def make_quantized(inputs: str, kind: Any) -> Run:
    """The same on rows of fewer bytes."""
    table, ids, pointers = _load(inputs)
    small = quantize(table, kind)
    return lambda: small.gather_reduce(pointers, ids, "mean")


ARMS = {
    "embedding_bag": make_embedding_bag,
    "spmm": make_spmm,
    "segment_reduce": make_segment_reduce,
    "shorthaul": make_shorthaul,
    "quantized": make_quantized,
}
