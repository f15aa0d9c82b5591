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
from shorthaul.integrations.script_questions import ScriptQuestion

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
    assert asked.stdout.startswith(
        "step 0\nstep 1\nmeasured with this loss: the script's own, 2 operations after the model; "
        "optimizer: SGD\nSequential: a step takes "
    )
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
    assert "ended before a model was called in training after a backward pass" in asked.stderr


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

    question = ScriptQuestion(RunWishes(question="advise"))
    assert question.answer(Fails(), (torch.ones(1),), {}, []) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "its own" in shown


def test_arguments_by_position_and_by_name_make_one_batch(capsys: pytest.CaptureFixture[str]):
    class Two(nn.Module):
        def forward(self, x: Any, *rest: Any, scale: float, **more: Any) -> Any:
            return x * scale

    question = ScriptQuestion(RunWishes(question="advise"))
    assert question.answer(Two(), (1, 2), {"scale": 3}, []) == 1
    assert "shorthaul advise: Two was called with further positional" in capsys.readouterr().err


ACCUMULATING = """
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 2000))
optimizer = torch.optim.AdamW(model.parameters())
loss_of = nn.CrossEntropyLoss()
for step in range(8):
    x, y = torch.randn(512, 64), torch.randint(2000, (512,))
    loss = loss_of(model(x), y) / 4
    loss.backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
PARAMETERS = 64 * 512 + 512 + 512 * 2000 + 2000


def test_the_scripts_own_loss_and_optimizer_are_measured(tmp_path: Path):
    (tmp_path / "train.py").write_text(ACCUMULATING)
    asked = shorthaul("advise", "--no-trials", "--save", "advice.json", "train.py", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert "the script's own, 2 operations after the model; optimizer: AdamW" in asked.stdout
    memory = Advice.load(tmp_path / "advice.json").memory
    # No step was taken yet: Adam's two states of each parameter are to come.
    assert 8 * PARAMETERS <= memory["optimizer states to come"] < 8.01 * PARAMETERS
    # What the loss saves, the logarithms of 2,000 shares for each sample, is seen.
    activations = Advice.load(tmp_path / "advice.json").activations
    assert activations[""] >= 512 * 2000 * 4


def test_a_fit_with_a_loss_of_the_scripts_own_keeps_the_batch_whole(tmp_path: Path):
    (tmp_path / "train.py").write_text(ACCUMULATING)
    asked = shorthaul("fit", "--memory", "64GiB", "--save", "fit.json", "train.py", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    shares = json.loads((tmp_path / "fit.json").read_text())["shares"]
    assert 8 * PARAMETERS <= shares["optimizer states to come"] < 8.01 * PARAMETERS


TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
rows = torch.randint(0, 96, (32, 64))
trainer = Trainer(
    GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=64, n_embd=64, n_layer=2, n_head=4)),
    TrainingArguments("checkpoints", max_steps=4, use_cpu=True, report_to=[], disable_tqdm=True,
                      per_device_train_batch_size=4, save_strategy="no"),
    train_dataset=[{"input_ids": row, "labels": row} for row in rows],
)
trainer.train()
print("the end")
"""


def test_a_trainers_script_is_answered_with_its_loss_and_its_optimizer(tmp_path: Path):
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(TRAINER)
    asked = shorthaul("fit", "--memory", "64GiB", "--save", "fit.json", "train.py", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert "measured with this loss: the model's own; optimizer: AdamW" in asked.stdout
    assert "the end" not in asked.stdout
    assert json.loads((tmp_path / "fit.json").read_text())["micro_batches"] == 1


def test_a_model_that_is_called_for_another_loss_first_is_followed_to_its_own():
    """As in adversarial training: the first backward pass does not reach the generator."""
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    question = ScriptQuestion(RunWishes(question="advise"))
    assert not question.is_ripe(generator)
    made = generator(torch.ones(3, 4))
    question.note_output(generator, made)
    of_critic = critic(made.detach()).mean()
    question.note_backward(of_critic, None)
    of_critic.backward()
    assert question.loss is None
    loss = -critic(made).mean()
    question.note_backward(loss, None)
    assert question.loss is not None
    assert torch.equal(question.loss(generator(torch.ones(3, 4))), loss)
    assert not question.is_ripe(critic)
    assert question.is_ripe(generator)
