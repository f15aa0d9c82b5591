"""What does a batch from disk cost as a graph grows to 100 million nodes, within 8 GiB of memory?

GraphSAGE of three layers of 64, batches of 1,024, fan-outs 15, 10, 5, on power-law graphs of
ogbn-papers100M's shape (`sh.datasets.write_power_law_graph`: 14.5 edges and 128 float32 features a node).
Each arm is a process of its own in a memory cgroup of its own; page cache on its behalf counts. Ours reads features past the page
cache, through the loader's own cache of 256 MiB, and samples a mapped topology; a second arm reads the
topology by requests too; the baseline maps the features (MADV_RANDOM) and samples as ours does. DGL and PyG hold the topology in memory and map the features; where they are killed for
memory, the row says so. Nothing is warm at first; each arm has run once before it is timed.

`read_bytes_per_batch` is what was read of features and labels, `ideal_bytes_per_batch` the rows that the batch is made of, once
each. Sizes: 1 and 10 million nodes and the most, up to 111,059,956, that leaves 12 GB of the disk free;
SHORTHAUL_BENCH_NODES names others (`1000000,80000000`), and SHORTHAUL_BENCH_FOLDER a folder where graphs are kept for the next
run. A full run takes about an hour, and the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import not_compared
from benchmarks.measuring.memory_limit import MemoryLimit
from benchmarks.measuring.page_cache import make_cold
from benchmarks.peers.process import (
    ARMS_FOLDER,
    PEERS_FOLDER,
    PEERS_PYTHON,
    ArmProcess,
    PeerError,
    ProcessArm,
)

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 8 * 2**30
MOST_NODES, EDGES_PER_NODE = 111_059_956, 1_615_685_872 / 111_059_956
SIZES = (1_000_000, 10_000_000)
LEFT_FREE_BYTES = 12 * 10**9
# On disk at once: a row, a label, a pointer, and four numbers of each edge; keys are gone by then.
NODE_BYTES = 512 + 8 + 4 + EDGES_PER_NODE * 16
BASELINE, OURS = "memory map, MADV_RANDOM", "shorthaul"
BATCHES, SIZE = 20, 1024


def choose_largest(free_bytes: int) -> int:
    """The most nodes, in millions, that leave some of the disk free.

    >>> choose_largest(100 * 10**9), choose_largest(72_000_000_000)
    (111059956, 79000000)
    """
    fitting = int((free_bytes - LEFT_FREE_BYTES) / NODE_BYTES)
    return MOST_NODES if fitting >= MOST_NODES else fitting // 10**6 * 10**6


def read_sizes(folder: Path, *, is_quick: bool) -> list[int]:
    """How many nodes the graphs have."""
    if "SHORTHAUL_BENCH_NODES" in os.environ:
        return [int(each) for each in os.environ["SHORTHAUL_BENCH_NODES"].split(",")]
    if is_quick:
        return [50_000, 200_000]
    return [*SIZES, choose_largest(shutil.disk_usage(folder).free)]


@contextlib.contextmanager
def written_graph(folder: Path, nodes: int) -> Iterator[Path]:
    """The folder of a graph of that size; gone afterwards unless SHORTHAUL_BENCH_FOLDER keeps it."""
    place = folder / f"power_law_{nodes}"
    made = sh.datasets.write_power_law_graph(
        place, nodes=nodes, edges=round(nodes * EDGES_PER_NODE), memory="1GiB"
    )
    for path in (made.features, made.labels, made.seeds, *made.graph.glob("*.npy")):
        make_cold(path)
    try:
        yield place
    finally:
        if "SHORTHAUL_BENCH_FOLDER" not in os.environ:
            shutil.rmtree(place)


def start(stack: contextlib.ExitStack, script: Path, python: Path | None = None) -> Any:
    """A process in a cgroup of its own, and the cgroup."""
    limit = stack.enter_context(MemoryLimit("shorthaul-bench", LIMIT_BYTES))
    process = ArmProcess.here(script) if python is None else ArmProcess(script, python, 3600.0)
    stack.enter_context(process)
    limit.add(process.identity)
    return process, limit


def describe(arm: ProcessArm, limit: MemoryLimit) -> dict[str, float]:
    """Figures of one run of an arm, per batch, and what it took of memory so far."""
    found = arm.result()
    assert isinstance(found, dict)
    batches = found["batches"]
    figures = {"input_rows_per_batch": found["input_rows"] / batches}
    for name in ("ideal_bytes", "feature_bytes", "read_bytes"):
        if found.get(name):
            figures[f"{name}_per_batch"] = found[name] / batches
    if "hit_share" in found:
        figures["cache_hit_share"] = found["hit_share"]
    used = limit.read()
    return figures | {
        "resident_bytes": used.resident_bytes,
        "page_cache_bytes": used.page_cache_bytes,
        "largest_memory_bytes": used.largest_bytes,
    }


def compare_arms(answer: Answer, case: str, folder: Path, batches: int) -> None:
    asked: dict[str, Any] = {
        "folder": str(folder),
        "count": batches,
        "threads": torch.get_num_threads(),
    }
    script, peers = ARMS_FOLDER / "very_large_arms.py", PEERS_FOLDER / "peer_arms_very_large.py"
    ours = {"cache": "256MiB", "mapped": True}
    makers: dict[str, tuple[Path, Path | None, str, dict[str, Any]]] = {
        BASELINE: (script, None, "memmap", {}),
        OURS: (script, None, "disk", ours),
        "shorthaul, topology by requests": (script, None, "disk", ours | {"mapped": False}),
    }
    if PEERS_PYTHON.exists():
        makers |= {name: (peers, PEERS_PYTHON, name.lower(), {}) for name in ("DGL", "PyG")}
    arms: list[ProcessArm] = []
    figures: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        for name, (path, python, key, more) in makers.items():
            process, limit = start(stack, path, python)
            try:
                arm = process.arm(key, name=name, events=batches, **asked, **more)
                figures[name] = describe(arm, limit)
            except PeerError as error:
                if python is None:
                    raise
                print(error, file=sys.stderr)
                is_killed = "status -9" in str(error)
                why = {"killed_at_bytes": LIMIT_BYTES} if is_killed else {"failed": 1}
                answer.leave_out(case, name, BASELINE, **why)
                continue
            arms.append(arm)
        answer.compare(
            case, arms, baseline=BASELINE, same=not_compared, figures=figures, sample_seconds=0.0
        )


def measure(answer: Answer) -> None:
    folder = Path(os.environ.get("SHORTHAUL_BENCH_FOLDER", ""))
    with contextlib.ExitStack() as stack:
        if folder == Path():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT)))
        sizes = read_sizes(folder, is_quick=answer.is_quick)
        answer.state(
            graph=f"power law, {EDGES_PER_NODE:.2f} edges a node; the largest of {sizes[-1]:,} nodes, "
            f"which is what the disk had room for",
            memory=f"{LIMIT_BYTES:,} bytes for each arm, page cache included",
            batches=f"{SIZE:,} seeds; an epoch of papers100M's 1,207,179 seeds has 1,179 batches",
            peers="DGL and PyG" if PEERS_PYTHON.exists() else "not installed: left out",
        )
        for nodes in sizes:
            with written_graph(folder, nodes) as place:
                compare_arms(answer, f"{nodes:,} nodes", place, 3 if answer.is_quick else BATCHES)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
