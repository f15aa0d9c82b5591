"""A graph on disk cut into parts: arms for `bench_partition_growth.py`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if str(Path(__file__).parents[2]) not in sys.path:  # served by `arm_server.py`, from its own folder
    sys.path.append(str(Path(__file__).parents[2]))
import shorthaul as sh


def make_partition(
    folder: str, out: str, parts: int, method: str, threads: int
) -> Callable[[], Any]:
    """Cut what `write_power_law_graph` wrote, each time anew."""
    torch.set_num_threads(threads)
    place = Path(folder)

    def run() -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)
        report = sh.distributed.partition(
            place / "graph",
            out,
            parts,
            features=sh.open(place / "features.npy"),
            seeds=sh.open(place / "seeds.npy")[:].cpu(),
            method=method,
        )
        return {"cut_share": report.cut_share}

    return run


ARMS = {"partition": make_partition}
