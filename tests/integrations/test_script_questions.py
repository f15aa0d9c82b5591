"""`shorthaul advise` and `shorthaul fit` ask an unedited script for its model and a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shorthaul.advice import Advice
from shorthaul.integrations.run import RunWishes
from shorthaul.integrations.script_questions import answer

TRAINING = """
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    print("step", step, flush=True)
    model(torch.randn(1024, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the end")
"""


def shorthaul(*words: str, cwd: Path) -> Any:
    return subprocess.run(
        (sys.executable, "-m", "shorthaul", *words),
        cwd=cwd,
        env=os.environ | {"SHORTHAUL_SCRATCH": str(cwd)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_script_is_advised_at_its_second_step_and_ends_there(tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAINING)
    asked = shorthaul("advise", "--no-trials", "--save", "advice.json", "train.py", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("step 0\nstep 1\nSequential: a step takes ")
    assert "the end" not in asked.stdout
    assert asked.stderr == ""
    assert Advice.load(tmp_path / "advice.json").model_name == "Sequential"


@pytest.mark.parametrize(("memory", "code"), [("64GiB", 0), ("1MiB", 1)])
def test_a_script_is_fitted(tmp_path: Path, memory: str, code: int):
    (tmp_path / "train.py").write_text(TRAINING)
    asked = shorthaul("fit", "--memory", memory, "--save", "fit.json", "train.py", cwd=tmp_path)
    assert asked.returncode == code, asked.stderr
    if code:
        assert asked.stderr.startswith("shorthaul fit: no plan fits 1.0 MiB")
        assert "Traceback" not in asked.stderr
    else:
        assert "Sequential fits 64.0 GiB: everything kept" in asked.stdout
        assert json.loads((tmp_path / "fit.json").read_text())["budget_bytes"] is None


def test_a_script_without_a_second_step_is_told(tmp_path: Path):
    (tmp_path / "short.py").write_text("import torch\nprint('done')\n")
    asked = shorthaul("advise", "short.py", cwd=tmp_path)
    assert (asked.returncode, asked.stdout) == (0, "done\n")
    assert "ended before a model was called a second time" in asked.stderr


def test_a_script_that_goes_on_after_exceptions_is_answered(tmp_path: Path):
    careful = TRAINING.replace("    model(torch", "    try:\n        model(torch").replace(
        "    optimizer.step()", "    except Exception:\n        continue\n    optimizer.step()"
    )
    (tmp_path / "train.py").write_text(careful)
    asked = shorthaul("fit", "--memory", "1MiB", "train.py", cwd=tmp_path)
    assert asked.returncode == 1
    assert "step 2" not in asked.stdout
    assert "shorthaul fit: no plan fits 1.0 MiB" in asked.stderr


def test_a_model_that_fails_shows_where(capsys: pytest.CaptureFixture[str]):
    class Fails(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("its own")

    assert answer(RunWishes(question="advise"), Fails(), (torch.ones(1),), {}) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "its own" in shown


def test_arguments_by_position_and_by_name_make_one_batch(capsys: pytest.CaptureFixture[str]):
    class Two(nn.Module):
        def forward(self, x: Any, *rest: Any, scale: float, **more: Any) -> Any:
            return x * scale

    assert answer(RunWishes(question="advise"), Two(), (1, 2), {"scale": 3}) == 1
    assert "shorthaul advise: Two was called with further positional" in capsys.readouterr().err
