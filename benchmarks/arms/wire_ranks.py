"""Ranks of one machine that exchange rows as ranks of many machines do, and count what is on the wire."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shorthaul as sh


def count_epoch(
    parts: Path, ranks: int, fan_outs: tuple[int, ...], batch_size: int, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """What each rank counts in one epoch over all batches.

    `options`: `hot` and `wire` of the table, `kept_bytes` and `look_ahead` of the loader.
    """
    context = multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        work = (ranks, f"file://{folder}/store", parts, fan_outs, batch_size, options, results)
        processes = [context.Process(target=_run_rank, args=(rank, *work)) for rank in range(ranks)]
        for each in processes:
            each.start()
        for each in processes:
            each.join()
        if any(each.exitcode for each in processes):
            raise RuntimeError("a rank failed; what it said is above")
        found = sorted((results.get() for _ in processes), key=lambda pair: int(pair[0]))
    return [counts for _, counts in found]


def _run_rank(
    rank: int,
    ranks: int,
    store: str,
    folder: Path,
    fan_outs: tuple[int, ...],
    batch_size: int,
    options: dict[str, Any],
    results: Any,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    parts = sh.distributed.open(folder, shares_machine=False)
    features = parts.features(hot=options["hot"], wire=options["wire"])
    loader = sh.distributed.MiniBatchLoader(
        parts,
        None,
        fan_outs,
        batch_size,
        features=features,
        shuffle=True,
        kept_bytes=options["kept_bytes"],
        look_ahead=options["look_ahead"],
    )
    for _ in loader:
        pass
    counts = features.report().to_dict()
    results.put((rank, counts | {"row_bytes": features.form.row_bytes, "steps": len(loader)}))
    dist.barrier()
    dist.destroy_process_group()
