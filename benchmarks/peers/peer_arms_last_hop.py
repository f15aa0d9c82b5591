"""Last-hop aggregation in PyG and DGL, for `bench_last_hop.py`; runs in the peers' environment.

As in a training step: the features of the block's source nodes are gathered, then averaged over the
edges of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[], torch.Tensor]


def _load(inputs: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    saved: dict[str, Any] = torch.load(inputs, weights_only=True)
    sources, local = torch.unique(saved["ids"], return_inverse=True)
    return saved["table"], sources, local, saved["pointers"]


def make_pyg(inputs: str) -> Run:
    """`MessagePassing` with mean aggregation, as `SAGEConv` has it."""
    from torch_geometric.nn import SimpleConv

    table, sources, local, pointers = _load(inputs)
    targets = torch.repeat_interleave(torch.arange(len(pointers) - 1), pointers.diff())
    edges = torch.stack([local, targets])
    layer = SimpleConv(aggr="mean")
    sizes = (len(sources), len(pointers) - 1)
    nothing = torch.empty(sizes[1], 0)

    def run() -> torch.Tensor:
        out: torch.Tensor = layer((table[sources], nothing), edges, size=sizes)
        return out

    return run


def make_dgl(inputs: str) -> Run:
    """`update_all(copy_u, mean)` on a block."""
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl
    from dgl import function

    table, sources, local, pointers = _load(inputs)
    targets = torch.repeat_interleave(torch.arange(len(pointers) - 1), pointers.diff())
    block = dgl.create_block((local, targets), len(sources), len(pointers) - 1)
    block.create_formats_()

    def run() -> torch.Tensor:
        block.srcdata["h"] = table[sources]
        block.update_all(function.copy_u("h", "m"), function.mean("m", "out"))
        out: torch.Tensor = block.dstdata.pop("out")
        return out

    return run


ARMS = {"pyg": make_pyg, "dgl": make_dgl}
