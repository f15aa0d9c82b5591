"""The programs of docs/distributed.md run one after the other, as two ranks of torchrun would."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import shorthaul as sh
from tests.distributed.part_folders import features_of, typed_graph
from tests.distributed.rank_processes import run_ranks

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"


class Model(nn.Module):
    """What a reader of the page has already."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, batch: sh.MiniBatch) -> torch.Tensor:
        x = self.linear(batch.features["paper"])
        places = torch.zeros(batch.blocks[0].num_sources, 5)
        x = places.index_copy(0, batch.type_positions["paper"], x)
        for block in batch.blocks:
            x = block.reduce(x, "mean") + x[: block.num_targets]
        return x


def run_page(rank: int, folder: Path, port: int) -> int:
    dist.destroy_process_group()  # the page makes its own
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.chdir(folder)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    names: dict[str, object] = {}
    for number, program in enumerate(programs):
        exec(compile(program, f"{PAGE.name}:{number}", "exec"), names)
        if number == 0:
            parts, model = names["parts"], Model()
            assert isinstance(parts, sh.distributed.Parts)
            names["seeds"], names["model"] = ("paper", torch.arange(30)), model
            names["labels"] = parts.labels("paper")
            names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.barrier()
    return len(programs)


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    sh.distributed.partition(
        typed_graph(),
        tmp_path / "parts",
        2,
        features={"paper": features_of(30)},
        labels={"paper": torch.arange(30) % 5},
        seeds={"paper": torch.arange(30)},
        hot=0.1,
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert run_ranks(run_page, 2, tmp_path, tmp_path, port) == [5, 5]
