"""How long does the last hop of a mini-batch take: the mean over sampled neighbors' features?

40,000 nodes with 10 neighbors each, out of 250,000 different source nodes of a table of 1,500,000 rows
of 128 float32. The ways: torch's fused `embedding_bag` on the table; source rows gathered, then a sparse
product; a row for each edge, then `segment_reduce`; PyG's and DGL's layers on gathered source rows; ours,
fused on the table. Every arm runs in a process of its own that holds the table, and `peak_bytes` is the
most memory that it had while it ran, pools included. Quantized rows lose precision: their case compares
within that.

A full run takes about four minutes and 10 GB of memory.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Measurable, same_within
from benchmarks.peers.process import ARMS_FOLDER, PEERS_FOLDER, PEERS_PYTHON, ArmProcess, ProcessArm

OWN = ARMS_FOLDER / "last_hop_arms.py"
PEERS = PEERS_FOLDER / "peer_arms_last_hop.py"
ROWS, WIDTH, TARGETS, FAN_OUT, SOURCES = 1_500_000, 128, 40_000, 10, 250_000
BASELINE = "embedding_bag on the table"


def write_inputs(path: Path, share: int) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS // share, WIDTH, generator=generator)
    sources = torch.randperm(len(table), generator=generator)[: SOURCES // share]
    edges = TARGETS // share * FAN_OUT
    ids = sources[torch.randint(len(sources), (edges,), generator=generator)]
    pointers = torch.arange(0, edges + 1, FAN_OUT)
    torch.save({"table": table, "ids": ids, "pointers": pointers}, path)


def measure(answer: Answer) -> None:
    share = 20 if answer.is_quick else 1
    with tempfile.TemporaryDirectory(dir=sh.settings.scratch_directory) as directory:
        inputs = Path(directory) / "inputs.pt"
        write_inputs(inputs, share)
        with contextlib.ExitStack() as stack:

            def own(key: str, name: str, **more: str) -> ProcessArm:
                process = stack.enter_context(ArmProcess.here(OWN))
                return process.arm(key, name=name, inputs=str(inputs), **more)

            def peer(key: str, name: str) -> ProcessArm:
                process = stack.enter_context(ArmProcess(PEERS, PEERS_PYTHON))
                return process.arm(key, name=name, inputs=str(inputs))

            exact = [
                own("embedding_bag", BASELINE),
                own("spmm", "gather, then sparse product"),
                own("segment_reduce", "gather, then segment_reduce"),
                peer("pyg", "PyG"),
                peer("dgl", "DGL"),
                own("shorthaul", "shorthaul"),
            ]
            # The order of ten additions differs: a few units in the last place of single precision.
            ask(answer, "float32", exact, relative=1e-5, absolute=1e-5)
            smaller = [
                exact[0],
                own("quantized", "shorthaul, float16 rows", kind="float16"),
                own("quantized", "shorthaul, bfloat16 rows", kind="bfloat16"),
                own("quantized", "shorthaul, int8 rows", kind="int8"),
            ]
            # A step of int8 is a 127th of a row's largest value, some 3.5 here; bfloat16 has 8 bits.
            ask(answer, "rows in fewer bytes", smaller, relative=1e-2, absolute=2e-2)
    answer.state(
        table=f"{ROWS // share:,} rows of {WIDTH} float32",
        edges=f"{TARGETS // share:,} nodes with {FAN_OUT} neighbors each",
    )


def ask(
    answer: Answer, case: str, arms: list[ProcessArm], *, relative: float, absolute: float
) -> None:
    measurable: list[Measurable] = list(arms)
    measured = answer.compare(
        case, measurable, baseline=BASELINE, same=same_within(relative, absolute)
    )
    for row, arm in zip(answer.rows[-len(measured) :], arms, strict=True):
        row["figures"]["peak_bytes"] = arm.measure_peak()["peak_bytes"]


if __name__ == "__main__":
    answer_question(measure, rounds=7)
