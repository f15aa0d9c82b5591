"""Every question that is asked of a GPU, answered on pretended devices, whose clock counts events.

Prints a line of JSON for each: its name, its run as the ledger keeps it, its table, and what went wrong. With a
count of 1, peers that take seconds to import take part.
"""

# ruff: noqa: E402
from tests.pretended_cuda.start import start

start()

import importlib
import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks import ledger
from benchmarks.ledger.machine import describe_machine
from benchmarks.measuring.answer import Answer, describe_commit, make_run
from benchmarks.rendering.render import render_run

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "benchmarks" / "questions" / "gpu"


def ask(name: str) -> dict[str, Any]:
    """One question from the beginning to the ledger and to the table."""
    module = importlib.import_module(f"benchmarks.questions.gpu.bench_{name}")
    answer = Answer(rounds=2, is_quick=True)
    module.measure(answer)
    asks = (module.__doc__ or "").partition("\n")[0]
    with tempfile.TemporaryDirectory() as directory:
        ledger.append(
            make_run(name, asks, answer, describe_machine(), describe_commit(ROOT)), Path(directory)
        )
        (run,) = ledger.read_runs(name, Path(directory))
    return {"run": run, "table": render_run(run)}


def main(count: int) -> None:
    if not count:
        sys.modules["trl"] = None  # type: ignore[assignment]
    for path in sorted(FOLDER.glob("bench_*.py")):
        name = path.stem.removeprefix("bench_")
        try:
            told = {**ask(name), "problem": ""}
        except Exception:
            told = {"problem": traceback.format_exc()}
        print(json.dumps({"name": name, **told}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
