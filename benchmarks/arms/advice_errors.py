"""What is predicted of one model, and what comes of it, in a process of its own.

Run as `python -m benchmarks.arms.advice_errors <model> <shapes, offload or fit> [quick]`. Prints as JSON the
predicted and measured peak of the process, and, where time is predicted, of a step.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from typing import Any

import torch

import shorthaul as sh
from benchmarks.arms.advice_models import MODELS, Case
from shorthaul.advice import Fit, Needs
from shorthaul.advice.watching.measurement import time_steps
from shorthaul.errors import NoFitError


def from_shapes(case: Case) -> dict[str, float]:
    """Everything kept: what is said from shapes alone, and a plain step."""
    needs = sh.fit(case.model, case.batch, memory="1TiB", micro_batches=(1,), dry=True)
    assert isinstance(needs, Needs)
    gc.collect()
    step = time_steps(case.model, [case.batch], None)
    assert step.peak_bytes is not None
    return {"predicted_bytes": needs.rows[0].kept_bytes, "measured_bytes": step.peak_bytes}


def of_advice(case: Case, directory: str) -> dict[str, float]:
    """The offloading that `sh.advise` puts first, and what `sh.apply` measures of it."""
    advice = sh.advise(case.model, case.batch, directory=directory, trials=False)
    applied = sh.apply(advice, names=["offload"])
    if not applied.changes:
        return {}
    told = {
        "kept_bytes": advice.peak_bytes,
        "predicted_bytes": applied.predicted_bytes,
        "predicted_step_seconds": applied.predicted_seconds,
        "measured_step_seconds": applied.measured_seconds or 0.0,
        "kept_step_seconds": advice.seconds,
    }
    if applied.measured_bytes is not None:
        told["measured_bytes"] = applied.measured_bytes
    applied.revert()
    return told


def of_fit(case: Case, directory: str) -> dict[str, float]:
    """A fit within two thirds of what a plain step takes besides what was there."""
    plain = time_steps(case.model, [case.batch], None)
    memory_bytes = plain.before_bytes + (plain.own_bytes or 0) * 2 // 3
    options: dict[str, Any] = {
        "memory": memory_bytes,
        "directory": directory,
        "micro_batches": (1,),
    }
    try:
        found = sh.fit(case.model, case.batch, **options)
    except NoFitError:
        return {}
    assert isinstance(found, Fit)
    return {
        "limit_bytes": memory_bytes,
        "predicted_bytes": found.predicted_bytes,
        "measured_bytes": found.measured_bytes or 0,
        "predicted_step_seconds": found.predicted_seconds,
        "measured_step_seconds": found.measured_seconds,
        "kept_step_seconds": plain.seconds,
    }


def main() -> None:
    """Predict and measure."""
    name, question, *quick = sys.argv[1:]
    torch.manual_seed(0)
    case = MODELS[name](bool(quick))
    case.model.train()
    if question == "shapes":
        told = from_shapes(case)
    else:
        with tempfile.TemporaryDirectory(dir=sh.settings.scratch_directory) as directory:
            told = (of_advice if question == "offload" else of_fit)(case, directory)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
