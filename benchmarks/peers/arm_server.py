"""The far side of `peers.py`: serves the arms of one script over pipes, a line of JSON each way.

Started as `python arm_server.py script.py` in any environment that has torch. The script defines
`ARMS`, names to factories; a factory takes JSON values and returns the function that is timed::

    ARMS = {"gather": make_gather}          # make_gather(rows=1000) -> a function without arguments

This file imports nothing of shorthaul: a peer's environment does not have it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

Run = Callable[[], object]


class Arms:
    """The arms made so far, and what can be asked of them."""

    def __init__(self, factories: dict[str, Callable[..., Run]]) -> None:
        self.factories = factories
        self.made: list[Run] = []

    def make(self, arm: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Build an arm; answers with its number."""
        self.made.append(self.factories[arm](**arguments))
        return {"number": len(self.made) - 1}

    def sample(self, number: int, calls: int) -> dict[str, Any]:
        """Time `calls` calls as one."""
        run = self.made[number]
        cpu_started, started = time.process_time(), time.perf_counter()
        for _ in range(calls):
            run()
        wall_seconds = time.perf_counter() - started
        return {"wall_seconds": wall_seconds, "cpu_seconds": time.process_time() - cpu_started}

    def result(self, number: int, path: str) -> dict[str, Any]:
        """Call once, timed, and save what came out as torch saves it."""
        import torch

        cpu_started, started = time.process_time(), time.perf_counter()
        made = self.made[number]()
        wall_seconds = time.perf_counter() - started
        cpu_seconds = time.process_time() - cpu_started
        torch.save(made, path)
        return {"wall_seconds": wall_seconds, "cpu_seconds": cpu_seconds}


def serve(arms: Arms, requests: TextIO, replies: TextIO) -> None:
    """Answer each request until there are no more."""
    for line in requests:
        request = json.loads(line)
        try:
            reply = getattr(arms, request.pop("do"))(**request)
        except Exception:  # whatever a peer raises is told, not swallowed
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def load_script(path: Path) -> Any:
    """The module that `path` holds."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{path} is not a Python script")
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


def main() -> None:
    """Serve the script named on the command line."""
    # What a peer prints must not get between the replies: it goes to the error output instead.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(Arms(load_script(Path(sys.argv[1])).ARMS), sys.stdin, replies)


if __name__ == "__main__":
    main()
