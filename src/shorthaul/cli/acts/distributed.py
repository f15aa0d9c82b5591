"""The act of `distributed`: two ranks that own a half of the features each."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shorthaul.cli.acts.stage import Outcome, Stage
from shorthaul.datasets import python_graph
from shorthaul.distributed import MiniBatchLoader, partition
from shorthaul.distributed import open as open_parts
from shorthaul.graphs import RelationalGraph
from shorthaul.settings import settings
from shorthaul.units import format_bytes

RANKS, BATCH, FAN_OUTS, TIMEOUT_SECONDS = 2, 256, (10, 10), 60.0


def show_distributed(stage: Stage) -> Outcome:
    """Load an epoch on two ranks: every row must be that of the table, and every seed there once."""
    stage.say("reading the standard library")
    data = python_graph(40 if stage.is_quick else 200).with_reversed()
    graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    with tempfile.TemporaryDirectory(dir=settings.scratch_directory) as directory:
        folder = Path(directory) / "parts"
        report = partition(
            graph,
            folder,
            RANKS,
            features=data.features,
            seeds=data.train,
            hot=0.05,
            fan_outs=FAN_OUTS,
            batch_size=BATCH,
            tell=stage.say,
        )
        stage.say("starting two ranks")
        seen = _run_ranks(folder)
        expected = data.features[open_parts(folder).originals().long()].double().sum(1)
    seeds = sorted(seed for each in seen for seed in each["seeds"])
    is_right = all(
        expected[each["nodes"]].tolist() == each["sums"] and len(each["nodes"]) > 0 for each in seen
    )
    holds = is_right and len(set(seeds)) == len(seeds) == len(data.train)
    rows = [
        (
            f"rank {number}",
            f"{each['near_rows']:,} rows of its own, {each['hot_rows']:,} hot, {each['kept_rows']:,} kept, "
            f"{each['far_rows']:,} of the other rank: {format_bytes(each['received_bytes'])}",
        )
        for number, each in enumerate(seen)
    ]
    rows.append(("edges cut", f"{report.cut_share:.1%}"))
    rows.append(("rows and seeds", "as in one process" if holds else "NOT as in one process"))
    figures = {
        "ranks": [
            {name: value for name, value in each.items() if isinstance(value, int | float)}
            for each in seen
        ],
        "cut_share": report.cut_share,
    }
    return Outcome(("what", "result"), tuple(rows), figures, holds=holds)


def _run_ranks(folder: Path) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    store = f"file://{folder.parent}/store"
    ranks = [
        context.Process(target=_load, args=(rank, store, folder, results), daemon=True)
        for rank in range(RANKS)
    ]
    for each in ranks:
        each.start()
    found = dict(results.get(timeout=2 * TIMEOUT_SECONDS) for _ in ranks)
    for each in ranks:
        each.join()
    return [found[rank] for rank in range(RANKS)]


def _load(rank: int, store: str, folder: Path, results: Any) -> None:
    """One rank's epoch: its seeds, its input nodes with the sums of their rows, and what that cost."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    parts = open_parts(folder, shares_machine=False, timeout_seconds=TIMEOUT_SECONDS)
    features = parts.features()
    loader = MiniBatchLoader(parts, None, FAN_OUTS, BATCH, features=features, shuffle=True)
    seeds: list[int] = []
    nodes, sums = [], []
    for batch in loader:
        assert isinstance(batch.features, torch.Tensor)
        seeds += batch.seeds.tolist()
        nodes.append(batch.input_nodes.long())
        sums.append(batch.features.double().sum(1))
    told = features.report().to_dict()
    # As lists: tensors would travel as files that end with this process.
    found = {"seeds": seeds, "nodes": torch.cat(nodes).tolist(), "sums": torch.cat(sums).tolist()}
    results.put((rank, told | found))
    dist.barrier()
    dist.destroy_process_group()
