"""One role of one act, in a process of its own: `python -m shorthaul.cli.acts.player MODULE ROLE SIZE`.

What it does meanwhile and the run at the end are lines of JSON on standard output. `{"turn": true}` asks
for the next turn, which a line on standard input gives.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from typing import Any

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.stage import Run
from shorthaul.host_memory import resident_bytes
from shorthaul.meter import read_peak_resident_bytes

_SAMPLE_SECONDS = 0.1


class Resident:
    """Looks at the process's resident memory again and again."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self._began = time.perf_counter()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        is_over = False
        while not is_over:  # once more at the end, so that there is something of the shortest run
            is_over = self._end.wait(_SAMPLE_SECONDS)
            self.samples.append((time.perf_counter() - self._began, resident_bytes()))

    def finish(self) -> tuple[tuple[float, int], ...]:
        """What was seen, at most some hundreds of it."""
        self._end.set()
        self._thread.join()
        every = max(1, len(self.samples) // 400)
        return tuple((round(seconds, 3), size) for seconds, size in self.samples[::every])


def _tell(kind: str, value: Any) -> None:
    print(json.dumps({kind: value}), flush=True)


def _wait() -> None:
    _tell("turn", True)
    if not sys.stdin.readline():
        raise EOFError("whoever started this process is gone")


def play(module: str, role: str, *, is_quick: bool) -> Run:
    """Play a role to its end, or to its failure."""
    resident = Resident()
    cue = Cue(lambda words: _tell("say", words), _wait)
    cue.say("starting")
    try:
        act = importlib.import_module(module)
        run: Run = act.play(role, is_quick=is_quick, cue=cue)
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        run = Run(role, role, failure=f"{type(error).__name__}: {first[0]}")
    values = run.to_dict() | {"resident": resident.finish()}
    values["peak_bytes"] = read_peak_resident_bytes() or 0
    return Run.from_dict(values)


def main() -> None:
    """Play what the command line names."""
    module, role, quick = sys.argv[1:4]
    _tell("run", play(module, role, is_quick=quick == "quick").to_dict())


if __name__ == "__main__":
    main()
