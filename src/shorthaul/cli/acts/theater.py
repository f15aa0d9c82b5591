"""Starts a process for each role of an act, listens to it, and says whose turn it is."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import IO

from shorthaul.cli.acts.stage import Act, Played, Run

Say = Callable[[str], None]


def play(act: Act, *, is_quick: bool, say: Say) -> Played:
    """Every role of an act: one after the other up to their first turns, then in turns.

    Only one of the processes works at a time.
    """
    began = time.perf_counter()
    with ExitStack() as stack:
        players = []
        for role in act.roles:
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            player = stack.enter_context(_Player(act.module, role, is_quick, say, errors))
            player.listen()
            players.append(player)
        waiting = [each for each in players if each.is_waiting]
        while waiting:
            for each in waiting:
                each.go_on()
            waiting = [each for each in waiting if each.is_waiting]
        runs = tuple(each.finish() for each in players)
    return Played(act, runs, time.perf_counter() - began)


class _Player:
    """The process of one role."""

    def __init__(self, module: str, role: str, is_quick: bool, say: Say, errors: IO[str]) -> None:
        self.is_waiting = False
        self._role, self._say, self._errors = role, say, errors
        self._run: Run | None = None
        size = "quick" if is_quick else "whole"
        self._process = subprocess.Popen(
            (sys.executable, "-m", "shorthaul.cli.acts.player", module, role, size),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> _Player:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()

    def listen(self) -> None:
        """Until it waits for its next turn, or is over."""
        self.is_waiting = False
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                told = json.loads(line)
            except ValueError:  # words of a library
                continue
            if not isinstance(told, dict):
                continue
            if "say" in told:
                self._say(f"{self._role}: {told['say']}")
            elif "run" in told:
                self._run = Run.from_dict(told["run"])
            elif "turn" in told:
                self.is_waiting = True
                return

    def go_on(self) -> None:
        """Give it its turn."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it ended meanwhile; `finish` says how
            pass
        self.listen()

    def finish(self) -> Run:
        """What it did, or why it failed."""
        code = self._process.wait()
        if self._run is not None:
            return self._run
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["without a word"])[-1]
        return Run(self._role, self._role, failure=f"the process ended with {code}: {last}")
