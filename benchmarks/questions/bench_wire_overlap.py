"""How much of the exchange of rows is hidden behind compute, when the network is slow?

Two ranks in network namespaces of their own, each with one thread, and a cable between them that a token bucket holds to
10 or 1 Gbit/s (or leaves as it is); latency is not added: that needs netem, which many kernels lack. GraphSAGE on ogbn-arxiv in two
parts of the streaming partitioner with 5 % hot rows. Timed are 12 batches three times: rows exchanged and
nothing computed, batches computed on that were kept, and both at once. Hidden is what the last saves of the first::

    hidden share = (exchange + compute - both) / min(exchange, compute)

Two ranks that compute on two cores leave the exchange no core of its own: the share is a lower bound for machines. A full run takes some minutes, needs root, and
times by itself: rounds are not interleaved.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.network_spaces import CABLE, NetworkSpaces
from benchmarks.peers.arxiv import load_arxiv
from benchmarks.questions.bench_wire_bytes import cut

ROOT = Path(__file__).parents[2]
SCRIPT = "benchmarks.arms.overlap_rank"
MEGABITS = {"the cable as it is": None, "10 Gbit/s": 10_000, "1 Gbit/s": 1_000}
BATCHES, SIZE = 12, 1024


def find_hidden_share(exchange: float, compute: float, both: float) -> float:
    """The share of the shorter of the two that the other hides, from 0 to 1.

    >>> find_hidden_share(exchange=2.0, compute=3.0, both=3.5)
    0.75
    """
    return min(1.0, max(0.0, (exchange + compute - both) / min(exchange, compute)))


def train(folder: Path, megabits: int | None, batches: int) -> dict[str, float]:
    """What rank 0 measured."""
    roots = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with NetworkSpaces(megabits) as spaces, tempfile.TemporaryDirectory() as place:
        words = (f"file://{place}/store", str(folder), str(batches), str(SIZE))
        ranks = [
            subprocess.Popen(
                (*spaces.inside(rank), sys.executable, "-m", SCRIPT, str(rank), *words),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"GLOO_SOCKET_IFNAME": CABLE, "PYTHONPATH": roots},
            )
            for rank in range(2)
        ]
        said = [each.communicate(timeout=1800) for each in ranks]
    for each, (_, errors) in zip(ranks, said, strict=True):
        if each.returncode:
            raise RuntimeError(f"a rank ended with {each.returncode}:\n{errors[-2000:]}")
    found: dict[str, float] = json.loads(said[0][0].splitlines()[-1])
    return found


def measure(answer: Answer) -> None:
    batches = 3 if answer.is_quick else BATCHES
    answer.state(
        batches=f"{batches} of {SIZE:,} seeds of both ranks together, one thread each",
        latency="none added: this kernel may have no netem",
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "parts")
        cut(load_arxiv(), folder, 2, is_random=False)
        for case, megabits in MEGABITS.items():
            runs = [train(folder, megabits, batches) for _ in range(answer.rounds)]
            one = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            times = (one["exchange_seconds"], one["compute_seconds"], one["both_seconds"])
            answer.count(
                case, "shorthaul", "shorthaul", **one, hidden_share=find_hidden_share(*times)
            )


if __name__ == "__main__":
    answer_question(measure, rounds=3)
