"""How much memory does a Trainer's process take, unedited or with one callback, and what does a step cost?

GPT-2 of 124 M parameters in Hugging Face's Trainer, in a process of its own for each sample. Resident memory is
the most that the kernel saw, of everything. What offloads makes large tensors in a pool, so that keeping and
checkpointing are measured with the pool, too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Sample, same_bits

SCRIPT = Path(__file__).parents[1] / "arms" / "trainer_script.py"
STEPS = 2


class ScriptArm:
    """A script in a process of its own; one sample is one run of it, and the median of its steps."""

    can_repeat = False

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self._command = name, list(command)
        self._environment = os.environ | dict(environment or {})
        self.figures: dict[str, float] = {}
        self._peaks: list[float] = []
        self._unused: Sample | None = None  # of the run that was compared with the others

    def sample(self, calls: int) -> Sample:
        """Run the script; its steps are the calls."""
        del calls
        if self._unused is None:
            self.result()
        sample, self._unused = self._unused, None
        assert sample is not None
        return sample

    def result(self) -> object:
        """The losses of a run; its steps are the next sample, for a run takes most of a minute."""
        found = self._run()
        walls, cpus = zip(*found["steps"], strict=True)
        self._unused = Sample(statistics.median(walls), statistics.median(cpus))
        return found["losses"]

    def _run(self) -> dict:
        done = subprocess.run(
            self._command, env=self._environment, stdout=subprocess.PIPE, text=True, check=True
        )
        found = json.loads(next(x for x in done.stdout.splitlines() if x.startswith('{"losses"')))
        self._peaks.append(found["peak_bytes"])
        self.figures["peak_resident_bytes"] = statistics.median(self._peaks)
        self.figures["least_peak_resident_bytes"] = min(self._peaks)
        self.figures["most_peak_resident_bytes"] = max(self._peaks)
        return found


def measure(answer: Answer) -> None:
    width, layers, batch, length = (128, 2, 2, 64) if answer.is_quick else (768, 12, 4, 512)
    options = {"width": width, "layers": layers, "batch": batch, "length": length, "steps": STEPS}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    script = [str(SCRIPT), *words]
    plain = [sys.executable, *script]
    pooled = [*plain, "--pool"]
    answer.state(
        model=f"GPT-2, width {width}, {layers} layers",
        batch=f"{batch} x {length} tokens, float32",
        processes="one for each sample; a step is the median of two after the first",
    )
    with tempfile.TemporaryDirectory(dir=os.environ.get("SHORTHAUL_SCRATCH")) as scratch:
        run = [sys.executable, "-m", "shorthaul", "run", "--offload", scratch]
        arms = [
            ScriptArm("keeping", plain),
            ScriptArm("keeping, with the pool", pooled),
            ScriptArm("checkpointing", [*plain, "--checkpointing"]),
            ScriptArm("checkpointing, with the pool", [*pooled, "--checkpointing"]),
            ScriptArm("shorthaul run", [*run, *script]),
            ScriptArm("shorthaul run, 4 GiB", [*run, "--memory", "4GiB", *script]),
            ScriptArm(
                "callback, 4 GiB",
                [*plain, "--callback", "4GiB"],
                {"SHORTHAUL_SCRATCH": scratch},
            ),
        ]
        answer.compare(
            "Trainer",
            arms,
            baseline="keeping",
            same=same_bits,
            figures={each.name: each.figures for each in arms},
        )


if __name__ == "__main__":
    answer_question(measure, rounds=3)
