"""A report every N steps of a training run, as a line of JSON in a file: for long jobs.

A line is whole or not there: each is one write to the end of the file, so what is read while the job
runs, or after it was killed, is valid.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shorthaul.errors import PlanError
from shorthaul.host_memory import resident_bytes

DEFAULT_STEPS = 100


@dataclass(frozen=True)
class StepReports:
    """Where reports go, and how often."""

    path: Path
    every_steps: int

    @classmethod
    def make(
        cls, path: str | os.PathLike[str] | None, every_steps: int | None
    ) -> StepReports | None:
        """What a user asked for; None where no file was named."""
        if path is None:
            if every_steps is not None:
                raise PlanError("`report_every` needs `report`, the file that reports go to.")
            return None
        steps = DEFAULT_STEPS if every_steps is None else every_steps
        if steps < 1:
            raise PlanError(f"`report_every` must be at least 1, got {steps}.")
        return cls(Path(path), steps)

    def is_due(self, step: int) -> bool:
        """Whether this step, counted from one, ends with a report."""
        return step % self.every_steps == 0

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a line; what was written before, by this job or the one it resumes, stays."""
        told = {"unix_seconds": time.time(), "step": step, "resident_bytes": resident_bytes()}
        line = json.dumps(told | dict(metrics)) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())
