"""Starts a process for each role of an act, and listens to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO

from shorthaul.cli.acts.stage import Act, Played, Run
from shorthaul.integrations.run import with_allocator

Say = Callable[[str], None]


def play(act: Act, *, is_quick: bool, say: Say) -> Played:
    """Every role of an act, one after the other."""
    began = time.perf_counter()
    runs = [_play_role(act, role, is_quick, say) for role in act.roles]
    return Played(act, tuple(runs), time.perf_counter() - began)


def _play_role(act: Act, role: str, is_quick: bool, say: Say) -> Run:
    words = (sys.executable, "-m", "shorthaul.cli.acts.player", act.module, role)
    size = "quick" if is_quick else "whole"
    # What `shorthaul run` sees to: plain runs are as PyTorch's users start them.
    environment = with_allocator(os.environ) if role.startswith("shorthaul") else dict(os.environ)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            (*words, size), stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            run = _listen(process.stdout, lambda told: say(f"{role}: {told}"))
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        if run is not None:
            return run
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["without a word"])[-1]
        return Run(role, role, failure=f"the process ended with {code}: {last}")


def _listen(lines: IO[str], say: Say) -> Run | None:
    run = None
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:  # words of a library
            continue
        if "say" in told:
            say(told["say"])
        elif "run" in told:
            run = Run.from_dict(told["run"])
    return run
