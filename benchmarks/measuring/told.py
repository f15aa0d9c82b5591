"""Arms whose samples were taken elsewhere, such as by processes that end with what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.measure import Sample

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Told:
    """An arm whose samples were taken by other processes."""

    name: str
    seconds: list[float]
    can_repeat: bool = False

    def sample(self, calls: int) -> Sample:
        """The next of them, and the first again after the last."""
        del calls
        self.seconds.append(self.seconds.pop(0))
        return Sample(self.seconds[-1], self.seconds[-1])

    def result(self) -> object:
        """Nothing that could be compared."""
        return None


def ask_process(module: str, *arguments: str, variables: Mapping[str, str]) -> dict[str, float]:
    """What a module of `benchmarks.arms` prints as JSON, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.arms.{module}", *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | dict(variables),
        timeout=600,
    )
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return said
