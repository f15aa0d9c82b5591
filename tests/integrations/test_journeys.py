"""Three users follow the README: the wheel is installed into an empty environment, their scripts are not edited.

What the wheel depends on is taken from the environment of the tests; nothing of shorthaul's source is on
the path.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from hatchling import build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
rows = torch.randint(0, 256, (24, 256))
trainer = Trainer(
    GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=256, n_embd=256, n_layer=4, n_head=4)),
    TrainingArguments("checkpoints", max_steps=3, use_cpu=True, logging_steps=1, report_to=[],
                      per_device_train_batch_size=8, save_strategy="no", disable_tqdm=True, seed=1),
    train_dataset=[{"input_ids": row, "labels": row} for row in rows],
)
trainer.train()
print("losses", [each["loss"] for each in trainer.state.log_history if "loss" in each])
"""
GRAPH = """
import torch
from torch_geometric.nn import RGCNConv

torch.manual_seed(0)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = RGCNConv(32, 32, num_relations=8), RGCNConv(32, 4, num_relations=8)

    def forward(self, x, edges, types):
        return self.second(self.first(x, edges, types).relu(), edges, types)

model = Model()
x, edges, types = torch.randn(500, 32), torch.randint(500, (2, 4000)), torch.randint(8, (4000,))
labels, optimizer, losses = torch.randint(4, (500,)), torch.optim.Adam(model.parameters()), []
for _ in range(4):
    loss = torch.nn.functional.cross_entropy(model(x, edges, types), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("losses", losses)
"""
IMAGES = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.Flatten(), nn.LazyLinear(4))
images, labels = torch.randn(8, 3, 32, 32), torch.randint(4, (8,))
model(images)
optimizer, losses = torch.optim.Adam(model.parameters()), []
for _ in range(4):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("losses", losses)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its `bin`; pip and the wheel are all that it has of its own."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "env", with_pip=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel = folder / build.build_wheel(str(folder))
    programs = folder / "env" / "bin"
    subprocess.run(
        [programs / "pip", "install", "--quiet", "--no-deps", "--no-index", wheel],
        check=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    # Where torch and the hosts are; the editable install of the tests' own environment stays behind.
    others = [each for each in sys.path if each.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")
    return programs


def run(environment: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    own |= {
        "HF_HUB_OFFLINE": "1",
        "SHORTHAUL_CACHE": str(folder / "cache"),
        "SHORTHAUL_SCRATCH": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [environment / words[0], *words[1:]],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def follow(environment: Path, folder: Path, script: str, *options: str) -> tuple[Any, Any, Any]:
    """Losses without and with shorthaul, and the report."""
    (folder / "train.py").write_text(script)
    plain = run(environment, folder, "python", "train.py")
    told = ("--report", "out.json")
    ours = run(environment, folder, "shorthaul", "run", *options, *told, "train.py")
    assert "shorthaul run: " in ours.stderr
    losses = [
        json.loads(re.findall(r"^losses (.*)$", each.stdout, re.M)[0]) for each in (plain, ours)
    ]
    return *losses, json.loads((folder / "out.json").read_text())


def test_the_installed_package_is_the_wheel(environment: Path, tmp_path: Path) -> None:
    code = "import shorthaul; print(shorthaul.__file__)"
    said = run(environment, tmp_path, "python", "-c", code).stdout
    assert said.startswith(str(environment.parent))
    assert "shorthaul" in run(environment, tmp_path, "shorthaul", "--version").stdout


def test_who_trains_with_hugging_faces_trainer(environment: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert "shorthaul run --memory 8GiB train.py" in README
    plain, ours, report = follow(environment, tmp_path, TRAINER, "--offload", str(tmp_path))
    assert plain == ours
    assert len(plain) == 3
    counts = report["offload"]["counts"]
    assert counts["peak_live_bytes"] < 0.7 * counts["peak_saved_bytes"]  # the gain
    assert report["peak_resident_bytes"] > 0
    _, within, _ = follow(environment, tmp_path, TRAINER, "--memory", "8GiB")
    assert within == plain


def test_who_has_a_model_of_pyg(environment: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    assert "shorthaul run --accelerate" in README
    plain, ours, report = follow(environment, tmp_path, GRAPH, "--accelerate")
    assert ours == pytest.approx(plain, rel=1e-3)
    (model,) = report["models"]
    assert {*model["changed"]} == {"first", "second"}  # the gain: both run compiled
    assert report["meter"]["launches"]


def test_who_trains_a_cnn(environment: Path, tmp_path: Path) -> None:
    assert "shorthaul run --replace-convs" in README
    plain, ours, report = follow(environment, tmp_path, IMAGES, "--replace-convs")
    assert ours == pytest.approx(plain, rel=1e-3)
    (model,) = report["models"]
    told = {**model["changed"], **model["left"]}
    assert {"0", "2"} <= {*told}  # each was measured, and the faster way taken
