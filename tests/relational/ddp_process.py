"""What each of two processes does: a relational model's gradients averaged, each with a graph of its own."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RGCNConv

PROCESSES = 2
RELATIONS = 3


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return RGCNConv(5, 4, RELATIONS)


def make_batch(rank: int) -> tuple[torch.Tensor, RelationalGraph]:
    generator = torch.Generator().manual_seed(rank)
    nodes = 9 + rank
    ends = torch.randint(nodes, (2, 30), generator=generator)
    kinds = torch.randint(RELATIONS, (30,), generator=generator)
    graph = RelationalGraph.from_edge_index(ends, kinds, num_nodes=nodes, num_relations=RELATIONS)
    return torch.randn(nodes, 5, generator=generator), graph


def gradients_of(model: nn.Module, rank: int) -> list[torch.Tensor]:
    model.zero_grad()
    model(*make_batch(rank)).square().mean().backward()
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


def run(rank: int, rendezvous: str) -> None:
    """An exception here is raised by the parent."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", f"file://{rendezvous}", timeout=timeout, rank=rank, world_size=PROCESSES
    )
    try:
        alone = [gradients_of(make_model(), each) for each in range(PROCESSES)]
        averaged = [(one + other) / 2 for one, other in zip(*alone, strict=True)]
        found = gradients_of(DistributedDataParallel(make_model()), rank)
        for expected, got in zip(averaged, found, strict=True):
            torch.testing.assert_close(got, expected)
        assert not torch.equal(alone[0][0], alone[1][0])
    finally:
        dist.destroy_process_group()
