"""The act of `distributed`: two ranks that own a half of the features each."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.stage import Run
from shorthaul.datasets import python_graph
from shorthaul.distributed import MiniBatchLoader, partition
from shorthaul.distributed import open as open_parts
from shorthaul.graphs import MiniBatchLoader as OneProcessLoader
from shorthaul.graphs import RelationalGraph
from shorthaul.settings import settings
from shorthaul.units import format_bytes

RANKS, BATCH, FAN_OUTS, TIMEOUT_SECONDS = 2, 256, (10, 10), 60.0


def play(role: str, *, is_quick: bool, cue: Cue) -> Run:
    """Load an epoch in one process, or on two ranks.

    What is compared: how many seeds there were, their sum, and how many rows were not the table's.
    """
    cue.say("reading the standard library")
    data = python_graph(40 if is_quick else 200).with_reversed()
    graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    if role == "plain":
        began = time.perf_counter()
        loader = OneProcessLoader(graph, data.features, None, data.train, BATCH, FAN_OUTS)
        seeds = [seed for batch in loader for seed in batch.seeds.tolist()]
        facts = _facts(seeds, wrong_rows=0)
        return Run(
            role, "one process, the whole table", facts, step_seconds=(time.perf_counter() - began,)
        )
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
            tell=cue.say,
        )
        cue.say("starting two ranks")
        began = time.perf_counter()
        seen = run_ranks(folder)
        seconds = time.perf_counter() - began
        originals = open_parts(folder).originals().long()  # parts have numbers of their own
    expected = data.features[originals].double().sum(1)
    seeds = [seed for each in seen for seed in originals[each["seeds"]].tolist()]
    what = "; ".join(
        f"rank {number}: {each['near_rows']:,} rows of its own, {each['far_rows']:,} of the other's, "
        f"{format_bytes(each['received_bytes'])}"
        for number, each in enumerate(seen)
    )
    facts = _facts(seeds, count_wrong(seen, expected))
    ranks = [
        {name: value for name, value in each.items() if isinstance(value, int | float)}
        for each in seen
    ]
    extra = {"ranks": ranks, "cut_share": report.cut_share}
    received = sum(each["received_bytes"] for each in seen)
    return Run(role, what, facts, step_seconds=(seconds,), received_bytes=received, extra=extra)


def count_wrong(seen: Sequence[Mapping[str, Any]], expected: torch.Tensor) -> int:
    """Rows of the ranks whose sum is not that of the table's row."""
    wrong = 0
    for each in seen:
        sums = expected[each["nodes"]].tolist()
        wrong += sum(one != other for one, other in zip_longest(sums, each["sums"]))
    return wrong


def _facts(seeds: Sequence[int], wrong_rows: int) -> tuple[float, ...]:
    return (float(len(seeds)), float(len(set(seeds))), float(sum(seeds)), float(wrong_rows))


def run_ranks(folder: Path) -> list[dict[str, Any]]:
    """What each rank saw of its epoch."""
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
