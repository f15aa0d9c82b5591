"""How fast does R-GAT train on a graph of IGBH's schema, and in how much memory, against PyG's and DGL's?

MLPerf's model: three layers with attention for each of twelve relations, 4 heads, 512 wide, fan-out 15, 10
and 5 for each relation, 1,024 features, 2,983 classes. The graph has ten million edges and is drawn from a
seed (`igbh_graph.py`). Timed are steps of training, per seed; each arm has a process of its own, whose peak is its
memory. PyG lets a node keep the neighbors that it got first, DGL draws anew for every layer: ours
does either. From disk, peers map their features; ours keeps a twentieth of them in a cache, with the page
cache as it is found. A library that is not there has a row without a time, and why is told below the table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms.igbh_graph import WIDTH, write_igbh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.peers.process import (
    ARMS_FOLDER,
    PEERS_FOLDER,
    ArmProcess,
    PeerError,
    ProcessArm,
)

ROOT = Path(__file__).parents[2]
OURS, PEERS = ARMS_FOLDER / "igbh_arms.py", PEERS_FOLDER / "peer_arms_igbh.py"
EDGES, BATCHES, SIZE = 10_000_000, 4, 64
QUICK_EDGES, QUICK_BATCHES, QUICK_SIZE, QUICK_WIDTH = 20_000, 2, 4, 64
CACHED_SHARE = 20  # one of so many bytes of features


def same_samples(expected: object, got: object) -> str:
    """Samples of different random numbers have about the same size, and models start as wrong."""
    assert isinstance(expected, dict)
    assert isinstance(got, dict)
    for key, most in (("nodes", 0.05), ("loss", 0.2)):
        if abs(got[key] / expected[key] - 1) > most:
            return f"{key}: expected about {expected[key]:.4g}, got {got[key]:.4g}"
    return ""


def measure_case(answer: Answer, case: str, wanted: dict[str, tuple[Path, str, Any]]) -> None:
    """Arms by name: a script, the key of an arm of it, and what it is asked."""
    if not answer.wants(case):
        return
    processes: list[ArmProcess] = []
    arms: list[ProcessArm] = []
    missing: dict[str, str] = {}
    size = QUICK_SIZE if answer.is_quick else SIZE
    batches = QUICK_BATCHES if answer.is_quick else BATCHES
    for_all = {"batches": batches, "size": size, "threads": torch.get_num_threads()}
    try:
        for name, (script, key, asked) in wanted.items():
            try:
                process = ArmProcess.here(script) if script is OURS else ArmProcess(script)
                processes.append(process)
                arm = process.arm(key, name=name, events=batches * size, **for_all, **asked)
                arm.result()  # compiles
                arms.append(arm)
            except PeerError as error:
                if script is OURS:
                    raise
                missing[name] = str(error).strip().splitlines()[-1]
        baseline = arms[0].name
        memory = {each.name: each.measure_peak() for each in arms}
        answer.compare(
            case,
            arms,
            baseline=baseline,
            same=same_samples,
            figures=memory,
            sample_seconds=0.0,
        )
        for name, why in missing.items():
            answer.leave_out(case, name, baseline)
            answer.state(**{f"{case}: {name} did not run": why})
    finally:
        for each in processes:
            each.close()


def measure(answer: Answer) -> None:
    edges, width = (QUICK_EDGES, QUICK_WIDTH) if answer.is_quick else (EDGES, WIDTH)
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        folder = Path(directory)
        write_igbh(folder, edges, width)
        feature_bytes = sum(each.stat().st_size for each in folder.glob("*.npy"))
        answer.state(
            graph=f"IGBH's schema, {edges:,} edges, {width} features: {feature_bytes / 1e9:.2g} GB",
            batch=f"{QUICK_SIZE if answer.is_quick else SIZE} seeds, fan-out 15, 10, 5 per relation",
        )
        where: dict[str, Any] = {"folder": str(folder)}
        cache = {"cached": CACHED_SHARE}
        anew = {"resample": True}
        measure_case(
            answer,
            "features in memory, nodes keep their neighbors",
            {
                "PyG": (PEERS, "pyg", where),
                "shorthaul": (OURS, "ours", where),
            },
        )
        measure_case(
            answer,
            "features in memory, every layer draws anew",
            {
                "DGL": (PEERS, "dgl", where),
                "shorthaul": (OURS, "ours", where | anew),
            },
        )
        measure_case(
            answer,
            "features on disk",
            {
                "PyG, memory map": (PEERS, "pyg", where | {"on_disk": True}),
                "shorthaul": (OURS, "ours", where | cache),
            },
        )


if __name__ == "__main__":
    answer_question(measure, rounds=3)
