"""What each of two processes does: one step plain, the same offloaded, gradients compared."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import shorthaul as sh
from tests.offload.keep_all import require_equal

PROCESSES = 2
TIMEOUT = datetime.timedelta(seconds=60)


def _blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, 0.1) for _ in range(2)))


def replicated() -> nn.Module:
    """The model on every process, gradients averaged (DDP)."""
    return DistributedDataParallel(_blocks())


def sharded() -> nn.Module:
    """Every block's parameters split between the processes (FSDP2)."""
    model, mesh = _blocks(), init_device_mesh("cpu", (PROCESSES,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def local_gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """This process's gradients of two accumulated steps."""
    model.zero_grad()
    torch.manual_seed(3)
    for _ in range(2):
        model(batch).square().mean().backward()
    gradients = [each.grad for each in model.parameters()]
    return [(each.to_local() if hasattr(each, "to_local") else each).clone() for each in gradients]


def compare(model: nn.Module, rank: int, directory: str) -> None:
    """Raise unless the gradients are the same bits with offloading."""
    batch = torch.randn(16, 4, 64, generator=torch.Generator().manual_seed(rank))
    expected = local_gradients(model, batch)
    assert any(bool(each.any()) for each in expected)
    offload = sh.offload_activations(directory, minimum_bytes=1024)
    for _ in range(2):
        with offload:
            require_equal(expected, local_gradients(model, batch))
    offload.store.wait_until_idle()
    report = offload.report()
    assert report.counts.offloaded > 10, report
    assert (report.live_bytes, report.disk_bytes) == (0, 0)


def run(rank: int, rendezvous: str, directory: str) -> None:
    """What each process runs; an exception here is raised by the parent."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{rendezvous}", timeout=TIMEOUT, rank=rank, world_size=PROCESSES
    )
    try:
        for make in (replicated, sharded):
            compare(make(), rank, directory)
            dist.barrier()
    finally:
        dist.destroy_process_group()
