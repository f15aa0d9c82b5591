"""`shorthaul run`: an unedited script, with what was asked for.

The process becomes Python with the script, as if it had been started so: `__main__`, tracebacks, the exit
code and signals are the script's own. What is asked for travels in one environment variable, and a
`sitecustomize` module, which Python runs before any script, takes it out again. So processes that the
script starts are its own, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

STARTUP = Path(__file__).parent / "startup"
VARIABLE = "SHORTHAUL_RUN"


@dataclass(frozen=True)
class RunWishes:
    """What a script is to be run with."""

    memory_bytes: int | None = None
    directory: str | None = None  # of offloaded activations
    offloads: bool = False
    recomputes: bool = True  # blocks, with `memory_bytes`, where the plan finds that faster
    replaces_convs: bool = False
    accelerates: bool = False
    report: str | None = None  # a file
    question: str | None = (
        None  # "advise" or "fit": answered with the script's model, which then ends
    )
    has_trials: bool = True  # of `advise`

    @property
    def report_path(self) -> Path | None:
        """The file of this process: each of a distributed run but the first has one of its own."""
        if self.report is None:
            return None
        path, rank = Path(self.report), int(os.environ.get("RANK", "0"))
        return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if rank else path

    @property
    def steps_path(self) -> Path | None:
        """Where lines go while it runs: beside the report, which is written at the end."""
        path = self.report_path
        return None if path is None else path.with_name(f"{path.name}.steps.jsonl")


def plan_environment(wishes: RunWishes, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the script's process, from which `take_wishes` makes the script's own."""
    planned = dict(environment)
    path = planned.get("PYTHONPATH")
    planned["PYTHONPATH"] = str(STARTUP) if path is None else f"{STARTUP}{os.pathsep}{path}"
    planned[VARIABLE] = json.dumps({"wishes": asdict(wishes), "path": path})
    return planned


def take_wishes(environment: MutableMapping[str, str]) -> RunWishes | None:
    """What `plan_environment` put in; afterwards the environment is the one that the user had."""
    text = environment.pop(VARIABLE, None)
    if text is None:
        return None
    told = json.loads(text)
    if told["path"] is None:
        del environment["PYTHONPATH"]
    else:
        environment["PYTHONPATH"] = told["path"]
    return RunWishes(**told["wishes"])


def run(wishes: RunWishes, words: Sequence[str]) -> NoReturn:
    """Become Python with these words, such as `script.py --epochs 3` or `-m module`."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *words]
    os.execve(sys.executable, command, plan_environment(wishes, os.environ))
