"""The loader and learnable tables under FSDP2, `Join` and accumulated gradients: the weights of one process."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shorthaul as sh
from tests.distributed.part_folders import WIDTH, cut_homogeneous
from tests.distributed.rank_processes import run_ranks

LEARNED, CLASSES = 4, 5


class Sage(nn.Module):
    """Features beside learned rows, two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = WIDTH + LEARNED
        self.layers = nn.ModuleList([nn.Linear(2 * width, 8), nn.Linear(16, CLASSES)])

    def forward(self, batch: sh.MiniBatch, learned: torch.Tensor) -> torch.Tensor:
        x = torch.cat([batch.features.double(), learned], 1)
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            x = layer(torch.cat([x[: block.num_targets], block.reduce(x, "mean")], 1)).relu()
        return x


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for each in model.layers:
        fully_shard(each, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def keep_gradients_here(model: nn.Module, is_last: bool) -> Any:
    """What hosts do between the batches of one step."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not is_last:
        return model.no_sync()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(is_last)
    return contextlib.nullcontext()


def train(rank: int, folder: Path, how: str, topology: Any, accumulate: int) -> torch.Tensor:
    """All weights after two epochs, and the learned rows."""
    parts = sh.distributed.open(
        folder, topology=topology, shares_machine=False, timeout_seconds=20.0
    )
    loader = sh.distributed.MiniBatchLoader(
        parts, None, (3, 2), 7, features=parts.features(), labels=parts.labels(), shuffle=True
    )
    table = sh.distributed.LearnableTable(parts, "node", LEARNED, dtype=torch.float64, sparse=False)
    model: nn.Module = Sage().double()
    if how == "fsdp":
        model = shard(model)
    elif how != "alone":
        model = nn.parallel.DistributedDataParallel(model)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, table)]
    is_joined = how == "join"
    with Join([model]) if is_joined else contextlib.nullcontext():
        for _ in range(2):
            for batch in loader:
                is_last = (batch.number + 1) % accumulate == 0 or batch.number + 1 == len(loader)
                with keep_gradients_here(model, is_last):
                    out = model(batch, table(batch.input_nodes))
                    losses = nn.functional.cross_entropy(out, batch.labels, reduction="sum")
                    (losses * batch.loss_scale).backward()
                if is_last:
                    for each in optimizers:
                        each.step()
                        each.zero_grad()
    weights = [
        getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()
    ]
    everything = table(torch.arange(60)).detach()
    return torch.cat([each.detach().flatten() for each in (*weights, everything)])


@pytest.mark.parametrize(
    ("how", "topology", "accumulate"),
    [
        ("fsdp", "replicated", 2),
        ("join", "split", 1),
        pytest.param("fsdp", "split", 1, marks=pytest.mark.slow),
        pytest.param("join", "replicated", 2, marks=pytest.mark.slow),
        pytest.param("ddp", "split", 2, marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_of_one_process(
    tmp_path: Path, how: str, topology: str, accumulate: int
) -> None:
    """Sums over ranks come in another order, so weights are equal but for float64's rounding.

    The last batch has two seeds, so that ranks have unequally many, and Join has nothing to make up for.
    """
    cut_homogeneous(tmp_path, 2)
    alone = train(0, tmp_path, "alone", topology, accumulate)
    for found in run_ranks(train, 2, tmp_path, tmp_path, how, topology, accumulate):
        torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-11)


def test_the_comparison_would_notice_a_step_left_out(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = (train(0, tmp_path, "alone", "split", each) for each in (1, 2))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
