"""One of two ranks that train GraphSAGE on ogbn-arxiv: a script for `bench_wire_overlap.py`.

In turns: rows are exchanged and nothing is computed; the batches that were kept are computed on, and nothing is exchanged; both at
once, rows of coming batches while one is computed on. Rank 0 prints the seconds of each, and the bytes that came.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import shorthaul as sh
from benchmarks.arms.sage_arms import FAN_OUTS, RATE, SAGE, WIDTH
from benchmarks.peers.arxiv import CLASSES


def main(rank: int, store: str, folder: str, batches: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    parts = sh.distributed.open(folder, shares_machine=False)
    features = parts.features(hot=True)
    torch.manual_seed(0)
    model = SAGE(128, WIDTH, WIDTH, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), RATE)

    def load() -> Iterable[Any]:
        loader = sh.distributed.MiniBatchLoader(
            parts, None, FAN_OUTS, size, features=features, shuffle=True
        )
        return itertools.islice(loader, batches)

    def compute(batch: Any) -> None:
        scores = model(batch.blocks, batch.features)
        nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def measure(work: Any) -> float:
        dist.barrier()
        started = time.perf_counter()
        work()
        dist.barrier()
        return time.perf_counter() - started

    kept = [*load()]  # also compiles and connects
    for batch in kept:
        compute(batch)
    before = features.report().to_dict()["received_bytes"]
    found = {
        "exchange_seconds": measure(lambda: [None for _ in load()]),
        "received_bytes": features.report().to_dict()["received_bytes"] - before,
        "compute_seconds": measure(lambda: [compute(each) for each in kept]),
        "both_seconds": measure(lambda: [compute(each) for each in load()]),
    }
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    parts.close()
    dist.destroy_process_group()
    # As children of multiprocessing do: threads of gloo may still run, and the end of a process that
    # waits for none of them is an abort.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
