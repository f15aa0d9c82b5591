"""What training on many machines would take, on paper: from counts of the ledger and sizes that were published.

Nothing here was run on more than one machine. Every assumption is a constant or an argument of this module::

    rows of a batch   expected distinct inputs if neighbors were drawn by a power law of exponent 3
    remote at random  rows * (machines - 1) / machines
    remote            that, by as many fewer as `wire_bytes` counted with parts, hot rows and rows kept
    bytes of a step   remote * (row + id)
    exchange          bytes / (share of the link that is used * link)
    memory            rows / machines + hot rows + topology, whole on every machine
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ledger
from shorthaul.units import format_bytes, format_seconds

MACHINES = (4, 16, 64)
GIGABITS = (25, 100)
FAN_OUTS, SEEDS = (15, 10, 5), 1024  # of each machine and step
HOT_SHARE = 0.05  # of the rows, on every machine
LINK_SHARE = 0.8  # of a link's bits are rows and ids; the rest is headers and waiting
ID_BYTES = 4  # of an asked row, within its owner's part
COMPUTE_SECONDS = 0.5  # of a step, for the share that is hidden
NAIVE, COUNTED = "nodes at random", "+ rows kept across batches"
COUNTED_CASE = "4 ranks"


@dataclass(frozen=True)
class Workload:
    """A graph as its authors describe it."""

    name: str
    nodes: int
    edges: int
    row_bytes: int
    index_bytes: int  # of an id of a node or of an edge
    has_relations: bool

    @property
    def topology_bytes(self) -> int:
        """What sampling reads: where rows begin, sources, and relations where there are several."""
        columns = 2 if self.has_relations else 1
        return (self.nodes + 1 + columns * self.edges) * self.index_bytes


WORKLOADS = (
    Workload("ogbn-papers100M", 111_059_956, 1_615_685_872, 128 * 4, 4, has_relations=False),
    Workload("IGBH-full", 547_306_935, 5_812_005_639, 1024 * 4, 8, has_relations=True),
)


@dataclass(frozen=True)
class Step:
    """One step on one machine."""

    batch_rows: float
    remote_rows: float
    wire_bytes: float  # that a machine receives
    exchange_seconds: float
    hidden_share: float  # behind COMPUTE_SECONDS of compute
    memory_bytes: float


def count_draws(seeds: int = SEEDS, fan_outs: tuple[int, ...] = FAN_OUTS) -> int:
    """Nodes that a batch meets, repeated ones counted: every node has as many neighbors as are asked for.

    >>> count_draws(seeds=1, fan_outs=(2, 3))
    12
    """
    met = seeds
    for fan_out in fan_outs:
        met += met * fan_out
    return met


def expect_distinct(nodes: int, draws: int, steps: int = 100_000) -> float:
    """How many different nodes `draws` draws meet, where rank r is as likely as r^-1/2 (exponent 3).

    >>> round(expect_distinct(nodes=1000, draws=10**6)), round(expect_distinct(10**9, 1))
    (1000, 1)
    """
    total = 0.0
    for step in range(steps):
        # Ranks u^2 * nodes for even u: each step has as many draws, and of few nodes where they are hot.
        low, high = step / steps, (step + 1) / steps
        share_of_nodes = high**2 - low**2
        per_node = draws / steps / (share_of_nodes * nodes)
        total += share_of_nodes * nodes * -math.expm1(-per_node)
    return total


def read_reduction(directory: Path) -> float:
    """As many times fewer rows as were counted on four ranks; measures at the same precision."""
    rows = ledger.read_runs("wire_bytes", directory)[-1]["rows"]
    counted = {row["arm"]: row["figures"] for row in rows if row["case"] == COUNTED_CASE}
    return float(counted[NAIVE]["remote_rows"] / counted[COUNTED]["remote_rows"])


def plan_step(workload: Workload, machines: int, gigabits: float, reduction: float) -> Step:
    """What a step takes; with a `reduction` of 1, parts are at random and nothing is kept."""
    rows = expect_distinct(workload.nodes, count_draws())
    remote = rows * (machines - 1) / machines / reduction
    wire_bytes = remote * (workload.row_bytes + ID_BYTES)
    seconds = wire_bytes / (LINK_SHARE * gigabits * 1e9 / 8)
    table_bytes = workload.nodes * workload.row_bytes
    hot_bytes = HOT_SHARE * table_bytes if reduction > 1 else 0.0
    return Step(
        rows,
        remote,
        wire_bytes,
        seconds,
        min(1.0, COMPUTE_SECONDS / seconds),
        table_bytes / machines + hot_bytes + workload.topology_bytes,
    )


def render_machines_on_paper(directory: Path) -> str:
    """A line for each graph, number of machines, and way to cut."""
    reduction = read_reduction(directory)
    headings = ["graph", "machines", "parts", "rows of a batch", "remote", "received a step"]
    for each in GIGABITS:
        headings += [f"at {each} Gbit/s", "hidden"]
    headings.append("memory of a machine")
    lines = [
        f"| {' | '.join(headings)} |",
        f"| --- | ---: | --- |{' ---: |' * (len(headings) - 3)}",
    ]
    for workload in WORKLOADS:
        for machines in MACHINES:
            for parts, factor in ((NAIVE, 1.0), (f"{reduction:.3g} times fewer rows", reduction)):
                steps = [plan_step(workload, machines, each, factor) for each in GIGABITS]
                one = steps[0]
                cells = [
                    workload.name,
                    f"{machines}",
                    parts,
                    f"{one.batch_rows:,.0f}",
                    f"{one.remote_rows:,.0f}",
                    format_bytes(one.wire_bytes),
                ]
                for each in steps:
                    cells += [format_seconds(each.exchange_seconds), f"{each.hidden_share:.0%}"]
                cells.append(format_bytes(one.memory_bytes))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
