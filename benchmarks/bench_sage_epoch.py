"""How long does an epoch of GraphSAGE on ogbn-arxiv take, and what does preparing its data cost?

Three layers of 64, batches of 1,024, fan-outs 15, 10, 5: our loader with a plain model, DGL and PyG each
with their own loader and layers, without workers and with two. The arms are compared by their accuracy
on nodes before they are learnt from. Then the preparation alone, sampling and gathering, where CPU
seconds count. Then the same epoch with features in a file of 1.4 GB, 16 times what the nodes have, of
which a cache keeps 64 MiB, beside numpy's memory map; once with the page cache cold and, where
SHORTHAUL_BENCH_CGROUP names a memory cgroup below the table's size, under that limit.

CPU seconds are those of the arm's own process: what workers use is not in them, so preparation is
compared without workers. A full run takes about six minutes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from benchmarks.answer import Answer, answer_question
from benchmarks.arxiv import load_arxiv
from benchmarks.measure import not_compared
from benchmarks.page_cache import make_cold
from benchmarks.peers import ArmProcess, ProcessArm
from benchmarks.sage_arms import CGROUP, SIZE, write_spread_table

HERE = Path(__file__).parent
OURS, PEERS = HERE / "sage_arms.py", HERE / "peer_arms_sage.py"
DISK_BATCHES = 3  # the memory map takes many seconds for each


def same_accuracy(expected: object, got: object) -> str:
    """Within three points: the random numbers of the arms differ."""
    assert isinstance(expected, dict)
    assert isinstance(got, dict)
    one, other = expected["accuracy"], got["accuracy"]
    return "" if abs(one - other) < 0.03 else f"accuracy: expected {one:.3f}, got {other:.3f}"


def compare_epochs(answer: Answer, count: int) -> None:
    asked = {"count": count, "threads": torch.get_num_threads(), "events": 1}
    with (
        ArmProcess.here(OURS) as ours,
        ArmProcess(PEERS) as dgl,
        ArmProcess(PEERS) as pyg,
    ):
        answer.compare(
            f"{count} batches",
            [
                dgl.arm("dgl", name="DGL", workers=0, **asked),
                dgl.arm("dgl", name="DGL, 2 workers", workers=2, **asked),
                pyg.arm("pyg", name="PyG", workers=0, **asked),
                pyg.arm("pyg", name="PyG, 2 workers", workers=2, **asked),
                ours.arm("memory", name="shorthaul", **asked),
                ours.arm("memory", name="shorthaul, layers draw anew", resample=True, **asked),
            ],
            baseline="DGL",
            same=same_accuracy if not answer.is_quick else not_compared,
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
    count = 3 if answer.is_quick else -(-len(data.train) // SIZE)
    answer.state(
        graph="ogbn-arxiv, 169,343 nodes, 2,332,486 edges (both directions), 90,941 to train on",
        limit=os.environ.get(CGROUP, "none: SHORTHAUL_BENCH_CGROUP names no cgroup"),
    )
    compare_epochs(answer, count)
    with tempfile.TemporaryDirectory(dir=HERE.parent) as directory:
        path = Path(directory) / "features.npy"
        write_spread_table(path, data.features)
        compare_disk(answer, path, is_limited=False)
        if CGROUP in os.environ:
            compare_disk(answer, path, is_limited=True)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
