"""Train GraphSAGE and R-GCN on parts of a graph: the same losses on any number of ranks.

    python examples/distributed_training/train.py parts/
    torchrun --standalone --nproc-per-node 4 examples/distributed_training/train.py parts/

On many machines: `torchrun --nnodes 2 --nproc-per-node 2 --rdzv-endpoint HOST:29500 ..` on each. `cut.py`
writes the parts. GraphSAGE reads features; R-GCN adds an embedding of each node that its owner trains.
`whole` is R-GCN on features of the whole graph at once, each rank its own nodes, without sampling.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import shorthaul as sh
from shorthaul.relational import RGCNConv


class SAGE(nn.Module):
    """What a node is, and the mean of what its sampled neighbors are."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(2 * width, 64)
        self.second = nn.Linear(2 * 64, classes)

    def forward(self, batch: sh.distributed.RankBatch, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each seed."""
        one, other = batch.blocks
        x = self.first(torch.cat([x[: one.num_targets], one.reduce(x)], 1)).relu()
        return self.second(torch.cat([x[: other.num_targets], other.reduce(x)], 1))


class RGCN(nn.Module):
    """Weights for each relation, made of a few that they share."""

    def __init__(self, width: int, classes: int, relations: int) -> None:
        super().__init__()
        self.first = RGCNConv(width, 32, relations, 4)
        self.second = RGCNConv(32, classes, relations, 4)

    def forward(
        self, batch: sh.distributed.RankBatch | sh.distributed.WholeGraph, x: torch.Tensor
    ) -> torch.Tensor:
        """Scores of each class, for each seed, or for each node that this rank owns."""
        if isinstance(batch, sh.distributed.WholeGraph):
            return batch.run(self.second, batch.run(self.first, x).relu())
        x = self.first(x, batch.blocks[0]).relu()
        return self.second(x, batch.blocks[1])


def train(name: str, parts: sh.distributed.Parts, epochs: int, classes: int) -> dict[str, object]:
    """Losses of all steps, and what the rows of other ranks cost this one."""
    features = parts.features(wire=None)
    loader = sh.distributed.MiniBatchLoader(
        parts, None, [10, 10], 256, features=features, labels=parts.labels(), shuffle=True, seed=1
    )
    torch.manual_seed(0)
    width = features.shape[1]
    model: nn.Module = (
        SAGE(width, classes) if name == "sage" else RGCN(width, classes, len(parts.relations))
    )
    embeddings = sh.distributed.LearnableTable(parts, "node", width) if name == "rgcn" else None
    if parts.ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters(), 3e-3)]
    if embeddings is not None:
        optimizers.append(torch.optim.SparseAdam(embeddings.parameters(), 1e-2))
    losses = []
    for _ in range(epochs):
        for batch in loader:
            x = batch.features
            if embeddings is not None:
                x = x + embeddings(batch.input_nodes)
            found = nn.functional.cross_entropy(model(batch, x), batch.labels, reduction="sum")
            (found * batch.loss_scale).backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
            losses.append(mean_over_ranks(found.detach() * batch.loss_scale, parts.ranks))
    return {"losses": losses, "rows": features.report().to_dict()}


def train_whole(parts: sh.distributed.Parts, epochs: int, classes: int) -> dict[str, object]:
    """The same for R-GCN on all nodes at once: a step is an epoch."""
    whole = sh.distributed.WholeGraph(parts)
    x, seeds = parts.features()[whole.nodes()], parts.seeds()
    own = whole.rows_of(seeds)
    labels = parts.labels()[whole.nodes()][own]
    torch.manual_seed(0)
    model: nn.Module = RGCN(x.shape[1], classes, len(parts.relations))
    if parts.ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(epochs):
        found = nn.functional.cross_entropy(model(whole, x)[own], labels, reduction="sum")
        loss = found * (parts.ranks / len(seeds))  # DDP's mean over ranks is the mean over seeds
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean_over_ranks(loss.detach(), parts.ranks))
    return {"losses": losses, "rows": whole.report().to_dict()}


def mean_over_ranks(value: torch.Tensor, ranks: int) -> float:
    if ranks > 1:
        dist.all_reduce(value)
    return value.item() / ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="parts that cut.py wrote")
    models = ["sage", "rgcn", "whole"]
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--epochs", type=int, default=3)
    topologies = ["auto", "replicated", "split"]
    parser.add_argument(
        "--topology", default="auto", choices=topologies, help="who has which edges"
    )
    parser.add_argument("--send-all", action="store_true", help="also between ranks of one machine")
    parser.add_argument("--report", type=Path, help="a file for losses and counts, as JSON")
    options = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    parts = sh.distributed.open(
        options.folder, topology=options.topology, shares_machine=not options.send_all
    )
    classes = int(parts.labels()[parts.seeds()].max()) + 1
    told = {
        name: train_whole(parts, options.epochs, classes)
        if name == "whole"
        else train(name, parts, options.epochs, classes)
        for name in options.models
    }
    if parts.rank == 0:
        for name, of_model in told.items():
            losses, rows = of_model["losses"], of_model["rows"]
            print(
                f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f} in {len(losses)} steps; rank 0 read "
                f"{rows['near_rows']:,} rows here, {rows['hot_rows']:,} hot ones, kept "
                f"{rows['kept_rows']:,}, and was sent {rows['far_rows']:,} and {rows['far_sums']:,} averages"
            )
        if options.report:
            options.report.write_text(json.dumps(told))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
