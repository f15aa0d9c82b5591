"""From a question to a line in the ledger: what every `bench_*.py` does in the same way.

A benchmark is a file named for its question, whose docstring's first line asks it::

    def measure(answer: Answer) -> None:
        answer.state(page_cache="cold, dropped before each sample")
        answer.compare("1,000 rows", [Arm("plain", ...), Arm("shorthaul", ...)], baseline="plain",
                       same=same_bits)

    if __name__ == "__main__":
        answer_question(measure)
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import ledger
from benchmarks.ledger.allocator import require_allocator
from benchmarks.ledger.machine import Machine, describe_machine
from benchmarks.measuring.measure import Measurable, Measured, Same, Spread, compare
from benchmarks.rendering import render
from shorthaul.settings import settings

QUICK_ROUNDS = 2


class Diary:
    """Finished cases of a run that may be broken off, in a file: a run of the same commit goes on after them.

    Args:
        path: Where it lies; it is made if it is not there.
        commit: As of `describe_commit`.
    """

    def __init__(self, path: Path, commit: Mapping[str, str | bool]) -> None:
        self.path = path
        self.finished: dict[str, list[dict[str, Any]]] = {}
        header = {"schema": ledger.SCHEMA, **commit}
        if not path.exists():
            path.write_text(json.dumps(header) + "\n")
            return
        first, *lines = path.read_text().splitlines()
        if json.loads(first) != header:
            raise SystemExit(f"{path} was begun by another commit: {first}. Give another file.")
        for line in lines:
            kept = json.loads(line)
            self.finished[kept["case"]] = kept["rows"]

    def add(self, case: str, rows: list[dict[str, Any]]) -> None:
        """Keep the rows of a case that is finished."""
        with self.path.open("a") as file:
            file.write(json.dumps({"case": case, "rows": rows}) + "\n")


@dataclass
class Answer:
    """The rows of one run, as they are measured.

    `is_quick` runs are rehearsals: few rounds, and small cases where a benchmark has them.
    """

    rounds: int = 9
    is_quick: bool = False
    conditions: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    only: str = ""
    parts: tuple[str, ...] = ()  # that were named for this run; (): all
    diary: Diary | None = None  # where finished cases are kept, so that a run can be broken off

    def wants(self, case: str) -> bool:
        """Whether a case is to be measured: `--only` names a part of it."""
        return self.only in case

    def choose_parts(self, every: Iterable[str]) -> list[str]:
        """Those of a question's parts, such as models, that this run is about; it says which."""
        known = list(every)
        unknown = [each for each in self.parts if each not in known]
        if unknown:
            raise SystemExit(
                f"no part is called {', '.join(unknown)}; there are {', '.join(known)}."
            )
        chosen = [each for each in known if not self.parts or each in self.parts]
        if self.parts:
            self.state(parts=", ".join(chosen))
        return chosen

    def each_left(self, cases: Iterable[str]) -> Iterator[str]:
        """The cases that are wanted and not measured yet; the rows of others come from the diary.

        Each is finished, and in the diary, when the next one is asked for.
        """
        for case in filter(self.wants, cases):
            if self.diary is not None and case in self.diary.finished:
                self.rows.extend(self.diary.finished[case])
                continue
            before = len(self.rows)
            yield case
            if self.diary is not None:
                self.diary.add(case, self.rows[before:])

    def state(self, **conditions: str) -> None:
        """Say under what conditions the figures hold: page cache, sizes, devices."""
        self.conditions |= conditions

    def compare(
        self,
        case: str,
        arms: Sequence[Measurable],
        *,
        baseline: str,
        same: Same,
        figures: Mapping[str, Mapping[str, float]] | None = None,
        sample_seconds: float = 0.05,
    ) -> list[Measured]:
        """Measure `arms` (see `measure.compare`) and add a row for each.

        `figures` holds further numbers per arm, such as bytes from the meter; the end of a
        figure's name is its unit: `read_bytes`, `rows_per_second`, `hit_share`.
        """
        measured = compare(
            arms,
            baseline=baseline,
            same=same,
            rounds=self.rounds,
            sample_seconds=0.001 if self.is_quick else sample_seconds,
        )
        for each in measured:
            further = dict((figures or {}).get(each.arm, {}))
            self.rows.append({"case": case, **asdict(each), "figures": further})
        return measured

    def leave_out(self, case: str, arm: str, baseline: str, **figures: float) -> None:
        """Add a row for an arm that has no time, and why: `needs_bytes`, `over_seconds`, `not_installed`."""
        none = asdict(Spread(0.0, 0.0, 0.0))
        row = {"case": case, "arm": arm, "baseline": baseline, "rounds": 0, "calls": 0}
        times = {"wall_seconds": none, "cpu_seconds": none, "speedup": none}
        self.rows.append({**row, **times, "figures": figures})

    def count(self, case: str, arm: str, baseline: str, **figures: float) -> None:
        """Add a row of exact counts, of a question that is not about time."""
        self.leave_out(case, arm, baseline, **figures)


def answer_question(
    measure: Callable[[Answer], None],
    *,
    allocator: str = "default",
    rounds: int = 9,
    parts: tuple[str, ...] = (),
) -> None:
    """Run the benchmark that `measure` belongs to, print its table and add it to the ledger.

    Args:
        measure: Adds the rows.
        allocator: How the C library gives memory back, see `ledger.allocator`.
        rounds: How often each arm is sampled unless `--rounds` says otherwise.
        parts: The parts that are measured unless `--parts` names others; () for all (default).
    """
    module = sys.modules[measure.__module__]
    question = Path(str(module.__file__)).stem.removeprefix("bench_")
    asks = (module.__doc__ or "").partition("\n")[0]
    options = _read_options(asks, rounds, parts)
    require_allocator(allocator)
    machine = describe_machine()
    settings.set(compiling="wait")  # what is timed is what was asked for, from the first round on
    commit = describe_commit(Path(__file__).parents[1])
    answer = Answer(options.rounds, options.quick, only=options.only, parts=options.parts)
    answer.diary = options.resume and Diary(options.resume, commit)
    measure(answer)
    run = make_run(question, asks, answer, machine, commit)
    print(render.render_run(run))
    if not (options.quick or options.no_ledger or options.only):
        print(f"\nAdded to {ledger.append(run, options.ledger)}.", file=sys.stderr)


def make_run(
    question: str,
    asks: str,
    answer: Answer,
    machine: Machine,
    commit: Mapping[str, str | bool],
) -> ledger.Run:
    """What was measured, as the ledger keeps it."""
    run = {
        "schema": ledger.SCHEMA,
        "question": question,
        "asks": asks,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **commit,
        "machine": machine,
        "conditions": answer.conditions,
        "rows": answer.rows,
    }
    ledger.verify_run(run, "this run")
    return run


def _read_options(asks: str, rounds: int, parts: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=asks)
    parser.add_argument("--rounds", type=int, help=f"how often each arm is sampled ({rounds})")
    parser.add_argument("--quick", action="store_true", help="a rehearsal, not in the ledger")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="the cases with TEXT in their name, if a file asks",
    )
    parser.add_argument(
        "--parts",
        type=lambda said: () if said == "all" else tuple(said.split(",")),
        default=parts,
        metavar="NAME,...",
        help=f"what to measure, such as models, if a file has parts ({','.join(parts) or 'all'})",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep finished cases here, and go on after those that are, if a file can",
    )
    parser.add_argument("--no-ledger", action="store_true", help="print the figures only")
    parser.add_argument("--ledger", type=Path, default=ledger.DIRECTORY, help="another directory")
    options = parser.parse_args()
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else rounds)
    return options


def describe_commit(directory: Path) -> dict[str, str | bool]:
    """The commit that is measured, and whether tracked files differ from it."""
    try:
        commit = _git(directory, "rev-parse", "HEAD")
        is_changed = bool(_git(directory, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "is_changed": False}
    return {"commit": commit, "is_changed": is_changed}


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()
