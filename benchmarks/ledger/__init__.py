"""The ledger: every run of every benchmark, one line of JSON each, and never a line changed.

`ledger/<question>.jsonl` holds the runs that answer one question. A figure that turns out wrong is
corrected by measuring again: the newest run of a machine is the one that is shown.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.ledger.machine import machine_key

DIRECTORY = Path(__file__).parent
SCHEMA = 1
Run = dict[str, Any]

# Field -> type, for a run and for each of its rows.
_RUN = {
    "schema": int,
    "question": str,
    "asks": str,
    "date": str,  # UTC, ISO 8601
    "commit": str,
    "is_changed": bool,  # tracked files differed from the commit
    "machine": dict,
    "conditions": dict,
    "rows": list,
}
_ROW = {
    "case": str,
    "arm": str,
    "baseline": str,
    "rounds": int,
    "calls": int,
    "wall_seconds": dict,
    "cpu_seconds": dict,
    "speedup": dict,
    "figures": dict,  # further numbers, with their unit at the end of their name
}


class LedgerError(ValueError):
    """A run that does not have the ledger's form, or a ledger that was changed by hand."""


def append(run: Run, directory: Path = DIRECTORY) -> Path:
    """Add one run to its question's file; nothing that is there already is touched."""
    verify_run(run, "the new run")
    path = directory / f"{run['question']}.jsonl"
    line = json.dumps(run, sort_keys=True, allow_nan=False) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            raise LedgerError(f"{path} ends in the middle of a line; complete or remove that line.")
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())
    return path


def read_runs(question: str, directory: Path = DIRECTORY) -> list[Run]:
    """Every run that answers `question`, oldest first, each checked."""
    path = directory / f"{question}.jsonl"
    runs = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        where = f"{path}:{number}"
        try:
            run = json.loads(line)
        except json.JSONDecodeError as error:
            raise LedgerError(f"{where} is not JSON: {error}") from error
        verify_run(run, where)
        if run["question"] != question:
            raise LedgerError(f"{where} answers `{run['question']}`, expected `{question}`")
        runs.append(run)
    return runs


def list_questions(directory: Path = DIRECTORY) -> list[str]:
    """The questions that have answers."""
    return sorted(path.stem for path in directory.glob("*.jsonl"))


def choose_latest(runs: Iterable[Run]) -> list[Run]:
    """The last run of each machine, in the order of the machines' first runs."""
    latest: dict[tuple[object, ...], Run] = {}
    for run in runs:
        latest[machine_key(run["machine"])] = run
    return list(latest.values())


def find_fastest(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row with the smallest median among those that were timed."""
    timed = (row for row in rows if row["rounds"])
    return min(timed, key=lambda row: float(row["wall_seconds"]["median"]), default=None)


def verify_run(run: object, where: str) -> None:
    """Raise `LedgerError` that says what is wrong with `run`, unless nothing is."""
    fields = _verify_fields(run, _RUN, where)
    if fields["schema"] != SCHEMA:
        raise LedgerError(f"{where}: expected schema {SCHEMA}, got {fields['schema']}")
    if not fields["question"].isidentifier():
        raise LedgerError(f"{where}: the question must be a plain name, got {fields['question']!r}")
    missing = {"cpu", "cores", "memory_bytes", "torch", "allocator"} - fields["machine"].keys()
    if missing:
        raise LedgerError(f"{where}: the machine lacks {', '.join(sorted(missing))}")
    if not fields["rows"]:
        raise LedgerError(f"{where}: a run without rows answers nothing")
    arms: set[tuple[str, str]] = set()
    for number, row in enumerate(fields["rows"]):
        _verify_row(row, f"{where}, row {number}")
        arms.add((row["case"], row["arm"]))
    if len(arms) != len(fields["rows"]):
        raise LedgerError(f"{where}: an arm is there twice in one case")
    for row in fields["rows"]:
        if (row["case"], row["baseline"]) not in arms:
            raise LedgerError(
                f"{where}: case `{row['case']}` lacks its baseline `{row['baseline']}`"
            )


def _verify_row(row: object, where: str) -> None:
    fields = _verify_fields(row, _ROW, where)
    for name in ("wall_seconds", "cpu_seconds", "speedup"):
        spread = _verify_fields(
            fields[name], dict.fromkeys(("low", "median", "high"), float), f"{where}, {name}"
        )
        if not 0 <= spread["low"] <= spread["median"] <= spread["high"]:
            raise LedgerError(f"{where}: {name} is not ordered low, median, high: {spread}")
    for name, value in fields["figures"].items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LedgerError(f"{where}: figure `{name}` must be a number, got {value!r}")


def _verify_fields(value: object, expected: Mapping[str, type], where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != expected.keys():
        got = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
        raise LedgerError(f"{where}: expected the fields {', '.join(expected)}; got {got}")
    for name, kind in expected.items():
        if not isinstance(value[name], kind):
            raise LedgerError(f"{where}: `{name}` must be {kind.__name__}, got {value[name]!r}")
    return value
