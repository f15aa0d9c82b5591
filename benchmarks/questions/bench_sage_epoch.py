"""How long does an epoch of GraphSAGE on ogbn-arxiv take, and what does preparing its data cost?

Three layers of 64, batches of 1,024, fan-outs 15, 10, 5: our loader with a plain model, DGL and PyG each
with their own loader and layers, without workers and with two. Timed are 12 of the epoch's 89 batches, which
are all alike; the arms are compared by their accuracy over the whole epoch's last third, on nodes before they are
learnt from, as the mean of two epochs. In each epoch all libraries start with the same weights and meet the nodes
in the same order; what differs is the neighbors that they draw. (With another start and order each, one library's
accuracy varied by 1.5 points from seed to seed, more than libraries differ.) Then the preparation alone, sampling and gathering, where CPU seconds count. Then training with
features in a file of 1.4 GB, 16 times what the nodes have, of which a cache keeps 64 MiB, beside numpy's
memory map: with the page cache cold and, where SHORTHAUL_BENCH_CGROUP names a folder with a memory cgroup
for each of the two (`sage_arms.py`) that holds less than the table, under that limit.

CPU seconds are those of the arm's own process: what workers use is not in them, so preparation is
compared without workers. A full run takes about seven minutes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import torch

from benchmarks.arms.sage_arms import CGROUP, read_limit, write_spread_table
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import not_compared
from benchmarks.measuring.page_cache import make_cold
from benchmarks.peers.arxiv import load_arxiv
from benchmarks.peers.process import ARMS_FOLDER, PEERS_FOLDER, ArmProcess, ProcessArm

ROOT = Path(__file__).parents[2]
OURS, PEERS = ARMS_FOLDER / "sage_arms.py", PEERS_FOLDER / "peer_arms_sage.py"
EPOCH_BATCHES, TIMED_BATCHES = 89, 12
ACCURACY_SEEDS = (0, 1)
DISK_BATCHES = 3  # the memory map takes many seconds for each


def measure_accuracy(ours: ArmProcess, dgl: ArmProcess, pyg: ArmProcess) -> dict[str, float]:
    """The mean accuracy of each over whole epochs; all within a point, or there is nothing to compare."""
    found: dict[str, list[float]] = {}
    for seed in ACCURACY_SEEDS:
        asked = {"count": EPOCH_BATCHES, "threads": torch.get_num_threads(), "seed": seed}
        arms = [
            dgl.arm("dgl", name="DGL", workers=0, **asked),
            pyg.arm("pyg", name="PyG", workers=0, **asked),
            ours.arm("memory", name="shorthaul", **asked),
            ours.arm("memory", name="shorthaul, layers draw anew", resample=True, **asked),
        ]
        for each in arms:
            result = each.result()
            assert isinstance(result, dict)
            found.setdefault(each.name, []).append(result["accuracy"])
    means = {name: statistics.mean(each) for name, each in found.items()}
    if max(means.values()) - min(means.values()) > 0.01:
        raise ValueError(f"the models do not learn alike: {found}")
    return means


def compare_epochs(answer: Answer, count: int) -> None:
    asked = {"count": count, "threads": torch.get_num_threads()}
    with (
        ArmProcess.here(OURS) as ours,
        ArmProcess(PEERS) as dgl,
        ArmProcess(PEERS) as pyg,
    ):
        accuracy = {} if answer.is_quick else measure_accuracy(ours, dgl, pyg)
        answer.compare(
            f"{count} of an epoch's {EPOCH_BATCHES} batches",
            [
                dgl.arm("dgl", name="DGL", workers=0, **asked),
                dgl.arm("dgl", name="DGL, 2 workers", workers=2, **asked),
                pyg.arm("pyg", name="PyG", workers=0, **asked),
                pyg.arm("pyg", name="PyG, 2 workers", workers=2, **asked),
                ours.arm("memory", name="shorthaul", **asked),
                ours.arm("memory", name="shorthaul, layers draw anew", resample=True, **asked),
            ],
            baseline="DGL",
            same=not_compared,  # by the accuracy after a whole epoch instead
            figures={name: {"epoch_accuracy_share": share} for name, share in accuracy.items()},
            sample_seconds=0.0,
        )
        prepared = {**asked, "is_trained": False}
        answer.compare(
            f"preparation of {count} batches",
            [
                dgl.arm("dgl", name="DGL", workers=0, **prepared),
                pyg.arm("pyg", name="PyG", workers=0, **prepared),
                ours.arm("memory", name="shorthaul", **prepared),
                ours.arm("memory", name="shorthaul, layers draw anew", resample=True, **prepared),
            ],
            baseline="DGL",
            same=not_compared,
            sample_seconds=0.0,
        )


def compare_disk(answer: Answer, path: Path, *, is_limited: bool) -> None:
    count = 2 if answer.is_quick else DISK_BATCHES
    asked = {"count": count, "threads": torch.get_num_threads(), "path": str(path)}
    with (
        ArmProcess.here(OURS) as memory,
        ArmProcess.here(OURS) as disk,
        ArmProcess.here(OURS) as mapped,
    ):

        def cold(process: ArmProcess, key: str, name: str, **more: object) -> ProcessArm:
            return process.arm(
                key,
                name=name,
                prepare=lambda: make_cold(path),
                is_limited=is_limited,
                **asked,
                **more,
            )

        answer.compare(
            f"{count} batches from disk, {'memory limited' if is_limited else 'cold'}",
            [
                cold(mapped, "memmap", "memmap, MADV_RANDOM"),
                cold(disk, "disk", "shorthaul", cache="64MiB"),
                memory.arm(
                    "memory",
                    name="shorthaul, features in memory",
                    count=count,
                    threads=asked["threads"],
                ),
            ],
            baseline="memmap, MADV_RANDOM",
            same=not_compared,  # few batches, in another order: accuracies are those of a first guess
            sample_seconds=0.0,
        )


def measure(answer: Answer) -> None:
    data = load_arxiv()
    answer.state(
        graph="ogbn-arxiv, 169,343 nodes, 2,332,486 edges (both directions), 90,941 to train on",
        limit=(
            f"{read_limit('disk')} bytes for shorthaul, {read_limit('memmap')} for the memory map"
            if CGROUP in os.environ
            else "none: SHORTHAUL_BENCH_CGROUP names no cgroup"
        ),
    )
    compare_epochs(answer, 2 if answer.is_quick else TIMED_BATCHES)
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        path = Path(directory) / "features.npy"
        write_spread_table(path, data.features)
        compare_disk(answer, path, is_limited=False)
        if CGROUP in os.environ:
            compare_disk(answer, path, is_limited=True)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
