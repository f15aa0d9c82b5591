"""What a script's process held over time, for its report."""

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

from shorthaul.integrations.script_page import suggest
from shorthaul.integrations.script_timeline import ScriptTimeline

TRAINING = """
import hashlib
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.1)) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    model(torch.randn(1024, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print(hashlib.sha256(weights).hexdigest())
print(len(model._forward_hooks), len(model[0]._forward_pre_hooks))
"""


def python(cwd: Path, *words: str) -> str:
    done = subprocess.run(
        (sys.executable, *words),
        cwd=cwd,
        env=os.environ | {"SHORTHAUL_SCRATCH": str(cwd)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("options", [(), ("--offload", ".")], ids=["kept", "offloaded"])
def test_a_watched_step_trains_to_the_same_bits(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    plain = python(tmp_path, "train.py")
    run = ("-m", "shorthaul", "run", "--report", "out.json", *options, "train.py")
    assert python(tmp_path, *run) == plain
    report = json.loads((tmp_path / "out.json").read_text())
    assert len(report["step_seconds"]) == 4
    assert len(report["resident"]) == 10
    modules = report["held"]["modules"]
    assert {"0", "1", "2", "3"} <= {name[0] for name in modules}
    assert all(len(sizes) == len(report["held"]["seconds"]) for sizes in modules.values())
    assert max(map(sum, zip(*modules.values(), strict=True))) >= 1024 * 512 * 4


def test_a_run_is_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "train.py").write_text(TRAINING)
    python(tmp_path, "-m", "shorthaul", "run", "--report", "out.html", "--offload", ".", "train.py")
    text = (tmp_path / "out.html").read_text()
    assert "<h1>shorthaul run: train.py</h1>" in text
    assert "memory to disk: activations" in text
    assert text.count('role="img"') == 4


def test_what_is_stacked_is_what_was_held() -> None:
    timeline = ScriptTimeline()
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid())
    for _ in range(3):
        timeline.begin_step(model)
        model(torch.randn(256, 64)).sum().backward()
        timeline.end_backward()
        model.zero_grad()
    assert timeline.held is not None
    assert set(timeline.held["modules"]) <= {"0", "1", "outside of modules", "others"}
    assert max(timeline.held["modules"]["1"]) >= 256 * 64 * 4
    assert not model[0]._forward_hooks


def test_a_call_without_a_backward_pass_is_no_longer_watched() -> None:
    timeline = ScriptTimeline()
    model = nn.Linear(2, 2)
    for _ in range(4):
        timeline.begin_step(model)
        model(torch.ones(1, 2))
    assert timeline.held is None
    assert not model._forward_hooks


def test_many_looks_are_thinned_out() -> None:
    timeline = ScriptTimeline()
    for _ in range(5000):
        timeline.look()
    assert 300 < len(timeline.resident) <= 1001
    seconds = [each for each, _ in timeline.resident]
    assert seconds == sorted(seconds)


REPORT: dict[str, Any] = {
    "asked": {"replaces_convs": False, "accelerates": False},
    "command": ["train.py"],
    "models": [{"is_trained": True, "convolutions": 0, "graph_layers": 0}],
    "offload": None,
    "seconds": 10.0,
    "meter": {"stall_seconds": {}},
}


def test_suggestions_follow_from_what_was_seen() -> None:
    assert "--memory 8GiB train.py" in suggest(REPORT)[0]
    waited = REPORT | {"offload": {}, "meter": {"stall_seconds": {"disk": 5.0}}}
    assert "waited 5.0 s for the disk" in suggest(waited)[0]
    assert "No model was trained" in suggest(REPORT | {"models": []})[0]


@pytest.mark.parametrize(
    ("layers", "flags"),
    [
        ({}, []),
        ({"convolutions": 2}, ["--replace-convs"]),
        ({"graph_layers": 2}, ["--accelerate"]),
        ({"convolutions": 1, "graph_layers": 1}, ["--replace-convs", "--accelerate"]),
    ],
    ids=str,
)
def test_flags_are_suggested_for_layers_that_are_there(
    layers: dict[str, int], flags: list[str]
) -> None:
    told = " ".join(suggest(REPORT | {"models": [REPORT["models"][0] | layers]}))
    assert [each for each in ("--replace-convs", "--accelerate") if each in told] == flags


def test_a_script_that_only_asks_a_model_is_not_told_of_training() -> None:
    asked = {"replaces_convs": True, "accelerates": False}
    models = [{"is_trained": False, "convolutions": 2, "graph_layers": 0}]
    told = suggest(REPORT | {"asked": asked, "models": models})
    assert told == ["Nothing else: no model was trained in this process."]
