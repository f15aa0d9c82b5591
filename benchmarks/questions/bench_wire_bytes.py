"""How many rows and bytes do ranks send each other in an epoch, as one measure after another is taken?

ogbn-arxiv in both directions, three hops, batches of all ranks together, float32 features of 512 bytes. Each
rank samples locally and asks others for the input rows that it does not own; nothing is trained. Arms
add up: nodes dealt out at random; parts of the streaming partitioner; 5 % of the rows copied to every rank;
rows kept while the next 16 batches ask for them again, within 16 MiB; rows sent as bfloat16. Figures are sums
over ranks and exact: `predicted_bytes` is rows times their bytes and ids times 4, each row once, with 32
bytes for each pair of ranks and round.

A full run takes some minutes, on a busy machine too: nothing is timed.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import shorthaul as sh
from benchmarks.arms.wire_ranks import count_epoch
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.peers.arxiv import Arxiv, load_arxiv

FAN_OUTS, BATCH_SIZE, HOT, KEPT, AHEAD = (15, 10, 5), 1024, 0.05, "16MiB", 16
NAIVE = "nodes at random"
PLAIN: dict[str, Any] = {"hot": False, "wire": None, "kept_bytes": 0, "look_ahead": 0}
ARMS: dict[str, dict[str, Any]] = {
    NAIVE: PLAIN,
    "+ streaming partitioner": PLAIN,
    "+ hot rows": PLAIN | {"hot": True},
    "+ rows kept across batches": PLAIN | {"hot": True, "kept_bytes": KEPT, "look_ahead": AHEAD},
    "+ rows as bfloat16": {
        "hot": True,
        "kept_bytes": KEPT,
        "look_ahead": AHEAD,
        "wire": "bfloat16",
    },
}


def cut(data: Arxiv, folder: Path, parts: int, *, is_random: bool) -> float:
    """Write parts; the share of edges between them."""
    nodes = data.num_nodes
    numbers = torch.arange(nodes)
    if is_random:
        numbers = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))
    features = torch.empty_like(data.features)
    features[numbers] = data.features
    source, target = numbers[data.edge_index]
    report = sh.distributed.partition(
        sh.RelationalGraph.from_edges(source, target, num_nodes=nodes),
        folder,
        parts,
        features=features,
        seeds=numbers[data.train],
        method="range" if is_random else "stream",
        hot=HOT,
        fan_outs=FAN_OUTS,
        batch_size=BATCH_SIZE,
    )
    return report.cut_share


def predict_bytes(counts: list[dict[str, Any]]) -> int:
    """What a plain formula says of rows and rounds."""
    ranks = len(counts)
    rows = sum(each["far_rows"] * (each["row_bytes"] + 4) for each in counts)
    rounds = counts[0]["steps"] * ranks * (ranks - 1) * 32
    return int(rows + rounds)


def measure(answer: Answer) -> None:
    data = load_arxiv()
    if answer.is_quick:
        data = replace(data, train=data.train[:4096])
    answer.state(
        batches=f"{BATCH_SIZE:,} seeds of {len(data.train):,}, fan-outs {FAN_OUTS}",
        hot_rows=f"{HOT:.0%} of the table",
        kept_rows=f"{KEPT} on each rank, {AHEAD} batches ahead",
    )
    with tempfile.TemporaryDirectory() as place:
        for ranks in (2, 4):
            folders = {True: Path(place, f"random{ranks}"), False: Path(place, f"stream{ranks}")}
            shares = {
                is_random: cut(data, folder, ranks, is_random=is_random)
                for is_random, folder in folders.items()
            }
            naive_rows = 0
            for arm, options in ARMS.items():
                is_random = arm == NAIVE
                counts = count_epoch(folders[is_random], ranks, FAN_OUTS, BATCH_SIZE, options)
                rows = sum(each["far_rows"] for each in counts)
                naive_rows = naive_rows or rows
                answer.count(
                    f"{ranks} ranks",
                    arm,
                    NAIVE,
                    cut_edges_share=shares[is_random],
                    remote_rows=rows,
                    fewer_rows=naive_rows / rows,
                    wire_bytes=sum(each["received_bytes"] for each in counts),
                    predicted_bytes=predict_bytes(counts),
                )


if __name__ == "__main__":
    answer_question(measure)
