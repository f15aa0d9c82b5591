"""What the four papers' abstracts claim, what the ledger says of it, and whether one follows from the other.

A verdict is never written by hand: it is made from the figure and the published one, so that a run that
tells something else changes the page, and a test notices. `shorthaul claims` prints them.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal

from benchmarks import ledger

Kind = Literal["same method on a CPU", "analogue", "model", "not testable here"]
Row = Mapping[str, Any]

DIRECT = "Min et al., PyTorch-Direct, [arXiv 2101.07956](https://arxiv.org/abs/2101.07956)"
HECTOR = "Wu et al., Hector, [arXiv 2301.06284](https://arxiv.org/abs/2301.06284)"
SSDTRAIN = "Wu et al., SSDTrain, [arXiv 2408.10013](https://arxiv.org/abs/2408.10013)"
IM2WIN_GPU = "Lu et al., Im2win on GPU, [arXiv 2306.14316](https://arxiv.org/abs/2306.14316)"
IM2WIN_CPU = "Lu et al., Im2win on SIMD, [arXiv 2306.14320](https://arxiv.org/abs/2306.14320)"


@dataclass(frozen=True)
class Figure:
    """What was measured: the number that is held against the published one, and its spread in words."""

    value: float
    words: str


@dataclass(frozen=True)
class Claim:
    """One quantitative statement of an abstract, and how it is looked at here."""

    name: str
    part: str
    quote: str
    source: str
    kind: Kind
    published: float  # the number in the quote, in the unit of the figure
    question: str  # of the ledger; empty: nothing was measured
    measure: Callable[[Sequence[Row]], Figure] | None
    what: str  # what the figure is, or why there is none
    minutes: int = 0
    memory_gib: int = 0

    def read(self, directory: Path = ledger.DIRECTORY) -> Figure | None:
        """The figure by the newest run."""
        if self.measure is None:
            return None
        if not self.question:
            return self.measure(())
        if self.question not in ledger.list_questions(directory):
            return None
        return self.measure(ledger.read_runs(self.question, directory)[-1]["rows"])

    def judge(self, figure: Figure | None) -> str:
        """The verdict that follows from the figure."""
        if self.kind == "not testable here":
            return "not testable here"
        if figure is None:
            return "a model" if self.kind == "model" else "not measured yet"
        met = "reached" if figure.value >= self.published else "not reached"
        return met if self.kind == "same method on a CPU" else f"{met}, by {self.kind}"

    @property
    def command(self) -> str:
        """What measures it again."""
        return f"shorthaul claims --run {self.name}" if self.question else ""


def _cases(rows: Sequence[Row], *words: str) -> Iterable[tuple[str, dict[str, Row]]]:
    """Each case whose name holds all `words`, with its arms that were timed."""
    for case in dict.fromkeys(row["case"] for row in rows):
        if all(word in case for word in words) and not case.startswith("geometric mean"):
            yield case, {row["arm"]: row for row in rows if row["case"] == case and row["rounds"]}


def _median(row: Row) -> float:
    return float(row["wall_seconds"]["median"])


def _spread(ratios: Sequence[float], unit: str = "x") -> str:
    return (
        f"{min(ratios):.3g}{unit} to {max(ratios):.3g}{unit}, "
        f"{geometric_mean(ratios):.3g}{unit} as a geometric mean of {len(ratios)}"
    )


def _over_peers(mode: str) -> Callable[[Sequence[Row]], Figure]:
    """How many times faster than the fastest peer, at most: the abstract says "up to"."""

    def measure(rows: Sequence[Row]) -> Figure:
        ratios = []
        for _, arms in _cases(rows, mode):
            peers = [_median(row) for arm, row in arms.items() if not arm.startswith("shorthaul")]
            if peers and "shorthaul" in arms:
                ratios.append(min(peers) / _median(arms["shorthaul"]))
        return Figure(max(ratios), _spread(ratios))

    return measure


def _ratios(rows: Sequence[Row], slow: str, fast: str, *words: str) -> list[float]:
    return [
        _median(arms[slow]) / _median(arms[fast])
        for _, arms in _cases(rows, *words)
        if slow in arms and fast in arms
    ]


def _mean_of(slow: str, fast: str, *words: str) -> Callable[[Sequence[Row]], Figure]:
    def measure(rows: Sequence[Row]) -> Figure:
        ratios = _ratios(rows, slow, fast, *words)
        return Figure(geometric_mean(ratios), _spread(ratios))

    return measure


def _most_of(slow: str, fast: str, *words: str) -> Callable[[Sequence[Row]], Figure]:
    def measure(rows: Sequence[Row]) -> Figure:
        ratios = _ratios(rows, slow, fast, *words)
        return Figure(max(ratios), _spread(ratios))

    return measure


def _epoch(rows: Sequence[Row]) -> Figure:
    """GraphSAGE's batches against the fastest peer."""
    (_, arms), *_ = _cases(rows, "epoch")
    peers = {arm: _median(row) for arm, row in arms.items() if arm.startswith(("DGL", "PyG"))}
    best = min(peers, key=peers.__getitem__)
    ratio = peers[best] / _median(arms["shorthaul"])
    theirs, ours = (arms[each]["wall_seconds"] for each in (best, "shorthaul"))
    least, most = theirs["low"] / ours["high"], theirs["high"] / ours["low"]
    return Figure(ratio, f"{ratio:.3g}x ({least:.3g}x to {most:.3g}x), against {best}")


def _gather(rows: Sequence[Row]) -> Figure:
    """Time saved by our gather, both into memory that is there already."""
    saved = [
        100 * (1 - 1 / each) for each in _ratios(rows, "index_select(out=)", "shorthaul, out=")
    ]
    mean = math.fsum(saved) / len(saved)
    least, most = -max(saved), -min(saved)
    return Figure(mean, f"{-mean:.3g} % ({least:.3g} to {most:.3g} % over {len(saved)} row widths)")


# A user's script before and after: what the abstract counts lines of. A test runs both.
TWO_LINES = (
    """\
import numpy, torch
features = torch.from_numpy(numpy.load("features.npy"))
rows = features[ids]
""",
    """\
import shorthaul as sh
features = sh.open("features.npy")
rows = features[ids]
""",
)


def _changed_lines(_: Sequence[Row]) -> Figure:
    before, after = (each.splitlines() for each in TWO_LINES)
    changed = sum(line not in before for line in after)
    return Figure(-changed, f"{changed} lines, the import included")


def _never_out_of_memory(rows: Sequence[Row]) -> Figure:
    ours = [row for row in rows if row["arm"].startswith("shorthaul")]
    failed = [row for row in ours if not row["rounds"]]
    others = [
        r for r in rows if not r["rounds"] and "needs_bytes" in r["figures"] and r not in ours
    ]
    words = (
        f"{len(failed)} of our {len(ours)} cells failed; {len(others)} peers' cells did by memory"
    )
    return Figure(0.0 if failed else 1.0, words)


def _less_live(rows: Sequence[Row]) -> Figure:
    """The peak of live activations, and the speed that is left; the fewest of three models."""
    arm = "offload to 30 %"
    shares = {case: arms[arm] for case, arms in _cases(rows) if arm in arms}
    less = [100 * (1 - row["figures"]["live_share"]) for row in shares.values()]
    speeds = ", ".join(f"{row['speedup']['median']:.2f}" for row in shares.values())
    return Figure(min(less), f"-{min(less):.3g} %; speed {speeds} of keeping ({', '.join(shares)})")


NEGLIGIBLE = 0.03  # a loss of speed that nobody would notice


def _less_than_recomputing(rows: Sequence[Row]) -> Figure:
    """Growth of resident memory and speed, beside recomputing each block.

    All models must take less memory than by recomputing, and lose no more speed than `NEGLIGIBLE`.
    """
    words, wins = [], []
    for case, arms in _cases(rows):
        ours, theirs = arms["offload to 12 %"], arms["recompute each block"]
        grown = [row["figures"]["peak_growth_bytes"] / 2**20 for row in (ours, theirs)]
        speeds = [row["speedup"]["median"] for row in (ours, theirs)]
        wins.append(grown[0] < grown[1] and speeds[0] >= 1 - NEGLIGIBLE)
        words.append(
            f"{case}: {grown[0]:.0f} against {grown[1]:.0f} MiB, "
            f"{speeds[0]:.2f} against {speeds[1]:.2f} of the speed"
        )
    return Figure(float(all(wins)), "; ".join(words))


def _lines(rows: Sequence[Row]) -> Figure:
    """Lines that an author writes, as a negative number: fewer is better."""
    written, made = (
        sum(int(row["figures"]["lines"]) for row in rows if row["arm"] == arm)
        for arm in ("written", "generated")
    )
    return Figure(-written, f"{written} lines written, {made:,} generated")


def _beats_recomputing(rows: Sequence[Row]) -> Figure:
    """The share of points of the curve at which offloading takes less memory and time than recomputing."""
    wins, words = [], []
    for case, arms in _cases(rows):
        ours, theirs = arms["offload to 12 %"], arms["recompute each block"]
        grown = [row["figures"]["peak_growth_bytes"] / 2**20 for row in (ours, theirs)]
        times = [_median(row) for row in (ours, theirs)]
        wins.append(grown[0] < grown[1] and times[0] < times[1])
        words.append(
            f"{case}: {grown[0]:.0f} against {grown[1]:.0f} MiB, "
            f"{times[1] / times[0]:.2f} times as fast"
        )
    return Figure(math.fsum(wins) / len(wins), "; ".join(words))


def _less_memory(arm: str, *, base: str = "im2col: unfold and mm") -> Callable[..., Figure]:
    """Memory beyond input, weight and output, as a mean over the layers."""

    def measure(rows: Sequence[Row]) -> Figure:
        saved = [
            100 * (1 - arms[arm]["figures"]["extra_bytes"] / arms[base]["figures"]["extra_bytes"])
            for _, arms in _cases(rows)
        ]
        mean = math.fsum(saved) / len(saved)
        return Figure(
            mean, f"-{mean:.3g} %; single layers -{min(saved):.3g} to -{max(saved):.3g} %"
        )

    return measure


_LAYERS = ("channels_last", "batch 1 threads 2")
_COLUMNS = "im2col: unfold and mm"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "P1", "tensors", "reduces data transfer time by 47.1% on average", DIRECT, "analogue", 47.1,
        "rows_in_memory", _gather,
        "Random rows of host memory by the CPU against index_select, into buffers. A GPU's link was never used.",
        3, 4,
    ),
    Claim(
        "P2", "tensors", "speeds up GNN training by up to 1.6x", DIRECT, "same method on a CPU", 1.6,
        "sage_epoch", _epoch, "Batches of GraphSAGE on ogbn-arxiv against the fastest of DGL and PyG.",
        20, 8,
    ),
    Claim(
        "P3", "tensors", "saves system power by 12.4% to 17.5% during training", DIRECT,
        "not testable here", 12.4, "", None, "There is no power meter, and the saving is a GPU system's.",
    ),
    Claim(
        "P4", "tensors", "users need to change at most two lines of their PyTorch GNN training code for each "
        "tensor object", DIRECT, "same method on a CPU", -2, "", _changed_lines,
        "A table of features opened on disk instead of loaded.",
    ),
    Claim(
        "H1", "relational", "up to 9.9x speed-up in inference", HECTOR, "same method on a CPU", 9.9,
        "relational_large", _over_peers("inference"),
        "Against the fastest of PyG and DGL in each cell, on graphs of up to a million edges.", 60, 16,
    ),
    Claim(
        "H2", "relational", "43.7x speed-up in training", HECTOR, "same method on a CPU", 43.7,
        "relational_large", _over_peers("training"), "As H1, for a training step.", 60, 16,
    ),
    Claim(
        "H3", "relational", "does not trigger any out-of-memory (OOM) exception in these tests", HECTOR,
        "same method on a CPU", 1, "relational_large", _never_out_of_memory,
        "Cells that ran, with 14 GiB for each arm.", 60, 16,
    ),
    Claim(
        "H4", "relational",
        "linear operator reorder and compact materialization to further accelerate the system by up to 3.8x",
        HECTOR, "same method on a CPU", 3.8, "relational_ablation", _most_of("neither", "both"),
        "Both passes against neither.", 30, 8,
    ),
    Claim(
        "H5", "relational",
        "Hector takes in 51 lines of code expressing the three models and generates 8K lines of CUDA and C++ code",
        HECTOR, "same method on a CPU", -51, "generated_lines", _lines,
        "R-GCN, RGAT and HGT without options, signatures included, one argument to a line; C++, forward and "
        "backward, without blank lines and comments. Held against the 51 lines.", 1, 1,
    ),
    Claim(
        "S1", "offload", "reduces 47% of the activation peak memory usage", SSDTRAIN,
        "same method on a CPU", 47, "offload", _less_live,
        "Peak of live activations with a budget of 30 %. Resident memory is in S2.", 40, 6,
    ),
    Claim(
        "S2", "offload",
        "Compared with keeping activations in GPU memory and layerwise full recomputation, SSDTrain "
        "achieves the best memory savings with negligible throughput loss",
        SSDTRAIN, "same method on a CPU", 1, "offload", _less_than_recomputing,
        "Growth of resident memory and speed at 12 % of live memory; negligible is a loss of 3 %.", 40, 6,
    ),
    Claim(
        "S3", "offload", "how the reduced activation memory use may be leveraged to increase throughput", SSDTRAIN,
        "model", 0, "", None,
        "`sh.offload.project` gives write bandwidth and the life of drives for published model sizes; its sums "
        "are tested against the paper's table, and nothing is measured",
    ),
    Claim(
        "S4", "offload",
        "introduce the recompute-offload-keep (ROK) curve to compare the SSDTrain offloading with other two "
        "tensor placement strategies", SSDTRAIN, "same method on a CPU", 1, "offload_batches", _beats_recomputing,
        "Growth of resident memory and speed at 12 % of live memory, beside recomputing each block, batch by "
        "batch; reached if less of both is taken at every batch. The picture is on the README.", 20, 4,
    ),
    Claim(
        "W1", "conv", "uses less memory footprint by 23.1% [...] compared with cuBLAS", IM2WIN_GPU,
        "analogue", 23.1, "conv_memory", _less_memory("im2win: whole window tensor"),
        "The papers' whole window tensor against im2col, memory beyond input, weight and output.", 10, 4,
    ),
    Claim(
        "W2", "conv", "achieves 3.5x TFLOPS compared with cuBLAS", IM2WIN_GPU, "analogue", 3.5,
        "conv_layers", _mean_of(_COLUMNS, "shorthaul", *_LAYERS),
        "Ours against im2col and a matrix product, both on a CPU, two threads.", 30, 4,
    ),
    Claim(
        "W8", "conv", "32.8% [...] compared with the best performant convolutions in cuDNN", IM2WIN_GPU,
        "analogue", 32.8, "conv_memory", _less_memory("shorthaul", base="PyTorch eager"),
        "Memory beyond input, weight and output: ours against oneDNN by PyTorch.", 10, 4,
    ),
    Claim(
        "W3", "conv", "achieves up to 1.8x TFLOPS compared with the best performant convolutions in cuDNN",
        IM2WIN_GPU, "analogue", 1.8, "conv_layers", _most_of("oneDNN prepacked", "shorthaul", *_LAYERS),
        "Ours against prepacked oneDNN, which runs near the peak already.", 30, 4,
    ),
    Claim(
        "W4", "conv", "achieves up to 155x TFLOPS compared with the direct convolution", IM2WIN_GPU,
        "analogue", 155, "conv_ablation", _most_of("plain loops", "outputs prefetched"),
        "Ours against plain loops, one thread; how plain is not said alike in both.", 20, 4,
    ),
    Claim(
        "W5", "conv", "reduces the memory overhead by average to 41.6% compared to the PyTorch's "
        "convolution implementation based on im2col", IM2WIN_CPU, "same method on a CPU", 41.6,
        "conv_memory", _less_memory("shorthaul"), "Ours against im2col, as W1.", 10, 4,
    ),
    Claim(
        "W6", "conv", "achieves average to 3.6x [...] compared to the im2col-based convolution", IM2WIN_CPU,
        "same method on a CPU", 3.6, "conv_layers", _mean_of(_COLUMNS, "shorthaul", *_LAYERS),
        "As W2.", 30, 4,
    ),
    Claim(
        "W7", "conv", "and 5.3x speedup in performance compared to [...] not using data transformation",
        IM2WIN_CPU, "same method on a CPU", 5.3, "conv_ablation",
        _mean_of("plain loops", "outputs prefetched"), "As W4, as a geometric mean.", 20, 4,
    ),
)  # fmt: skip


def render_claims(directory: Path = ledger.DIRECTORY) -> str:
    """Every claim with its source, what was measured, and the verdict."""
    lines = ["| | the abstract says | kind | measured | verdict | again |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for each in CLAIMS:
        figure = each.read(directory)
        measured = f"{figure.words}. {each.what}" if figure else each.what
        ledger_row = f" Ledger: `{each.question}`." if each.question else ""
        cost = (
            f"`{each.command}`, {each.minutes} min, {each.memory_gib} GiB" if each.question else ""
        )
        quote = f"“{each.quote}” ({each.source})"
        cells = (each.name, quote, each.kind, measured + ledger_row, each.judge(figure), cost)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# The README shows one or two of each part, those that a user feels.
IN_BRIEF = ("P1", "P2", "H1", "H2", "H3", "S1", "S2", "W6")


def render_claims_briefly(directory: Path = ledger.DIRECTORY) -> str:
    """Eight rows for the README."""
    lines = ["| part | published, on GPUs but for W6 | measured here, on a CPU | verdict |"]
    lines.append("| --- | --- | --- | --- |")
    for each in CLAIMS:
        if each.name in IN_BRIEF:
            figure = each.read(directory)
            words = figure.words if figure else "-"
            verdict = each.judge(figure)
            lines.append(f"| `{each.part}` ({each.name}) | {each.quote} | {words} | {verdict} |")
    return "\n".join(lines)


def find_claim(name: str) -> Claim | None:
    """The claim of this name."""
    return next((each for each in CLAIMS if each.name.lower() == name.lower()), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the claims that are named, or all, and measure anew first with `--run`."""
    parser = argparse.ArgumentParser(description="What the papers claim, and what was measured.")
    parser.add_argument("names", nargs="*", help="such as H1; all when none is named")
    parser.add_argument("--run", action="store_true", help="measure them anew, into the ledger")
    options = parser.parse_args(arguments)
    chosen = []
    for name in options.names or [each.name for each in CLAIMS]:
        found = find_claim(name)
        if found is None:
            parser.error(
                f"there is no claim {name!r}; there are {', '.join(c.name for c in CLAIMS)}"
            )
        chosen.append(found)
    if options.run:
        for question in dict.fromkeys(each.question for each in chosen if each.question):
            done = subprocess.run(
                (sys.executable, "-m", f"benchmarks.questions.bench_{question}"), check=False
            )
            if done.returncode:
                return done.returncode
    for each in chosen:
        figure = each.read()
        print(f"{each.name}  {each.judge(figure)}: {figure.words if figure else each.what}")
        print(f"    “{each.quote}”\n    {each.kind}. {each.what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
