"""GraphSAGE on a table of features that a memory limit has no room for: in memory, and on disk."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train
from shorthaul.datasets import python_graph
from shorthaul.graphs import MiniBatch, MiniBatchLoader, RelationalGraph
from shorthaul.settings import settings
from shorthaul.tensors import open as open_table
from shorthaul.units import format_bytes

WIDTH, BATCH, FAN_OUTS = 128, 32, (4, 4)
FEATURES = 6144  # of a node: as much as a page of text has
_LIMIT_SHARE = 0.75  # of the table: what the process may still allocate when it begins with it
_ROWS_AT_A_TIME = 1024


class SmallSAGE(nn.Module):
    """Features made narrow, then two layers: what a node is, and the mean of its sampled neighbors."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(features, WIDTH)
        pairs = ((WIDTH, WIDTH), (WIDTH, classes))
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.neighbors = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairs)

    def forward(self, batch: MiniBatch) -> torch.Tensor:
        """The loss of telling the seeds' classes."""
        assert isinstance(batch.features, torch.Tensor)
        x = self.narrow(batch.features)
        for number, block in enumerate(batch.blocks):
            x = x.relu()
            own, neighbors = x[: block.num_targets], block.reduce(x, "mean")
            x = self.own[number](own) + self.neighbors[number](neighbors)
        assert batch.labels is not None
        return nn.functional.cross_entropy(x, batch.labels)


def play(role: str, *, is_quick: bool, cue: Cue) -> Run:
    """Train with features in memory, without or with a limit, or from a file with the limit."""
    cue.say("reading the standard library")
    data = python_graph(200).with_reversed()
    graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    seeds = data.train[: BATCH * (4 if is_quick else 8)]
    with tempfile.TemporaryDirectory(dir=settings.scratch_directory) as directory:
        path = Path(directory) / "features.npy"
        cue.say("writing features")
        table_bytes = _write_features(path, data.features)
        torch.manual_seed(0)
        model = SmallSAGE(FEATURES, data.num_classes)
        if role != "plain":
            _limit_memory(int(table_bytes * _LIMIT_SHARE))
        if role.startswith("plain"):
            features: Any = torch.from_numpy(np.load(path))
            what = f"{format_bytes(table_bytes)} of features in memory"
        else:
            features = open_table(path, cache="belady", cache_bytes=table_bytes // 10)
            what = f"{format_bytes(table_bytes)} of features on disk, a tenth of them cached"
        loader = MiniBatchLoader(
            graph, features, data.labels, seeds, BATCH, FAN_OUTS, shuffle=True, seed=1
        )
        # A turn is an epoch: what is read ahead is read within it.
        epochs = [loader] * (1 + (2 if is_quick else 5))
        run = train(role, what, model, epochs, _step, cue, learning_rate=3e-3)
        run.extra["table_bytes"] = table_bytes
        return run


def _write_features(path: Path, features: torch.Tensor) -> int:
    """The graph's own features, made wide by random products, without ever being in memory at once."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    wide = torch.randn(
        features.shape[1], FEATURES, generator=generator, dtype=torch.float32, device="cpu"
    )
    wide /= features.shape[1] ** 0.5
    table = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(len(features), FEATURES)
    )
    for start in range(0, len(features), _ROWS_AT_A_TIME):
        rows = features[start : start + _ROWS_AT_A_TIME].float()
        table[start : start + len(rows)] = torch.tanh(rows @ wide).numpy()
    table.flush()
    size: int = table.nbytes
    return size


def _limit_memory(more_bytes: int) -> None:
    """Let the process allocate as many bytes more, whatever the machine has."""
    status = Path("/proc/self/status").read_text()
    data = next(line for line in status.splitlines() if line.startswith("VmData:"))
    limit = int(data.split()[1]) * 1024 + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
