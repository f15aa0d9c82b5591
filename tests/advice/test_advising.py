from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.advice import applying
from shorthaul.advice.changes import Search
from shorthaul.advice.watching.measurement import measure
from shorthaul.conv import ReplacementReport, replace_convs
from shorthaul.errors import PlanError
from shorthaul.jit.compiling.pool import compilers
from shorthaul.settings import settings


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Dropout(0.5), nn.GELU())
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Model()


BATCH = torch.randn(8192, 256)  # its activations count beside a whole process of tests


def state_of(model: nn.Module) -> list[bytes]:
    tensors = [*model.state_dict().values(), *(each.grad for each in model.parameters())]
    return [each.numpy().tobytes() for each in tensors] + [
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        repr(np.random.get_state()).encode(),
    ]


@pytest.mark.parametrize("question", ["advise", "apply", "fit", "dry"])
def test_the_model_is_as_it_was_before(model: nn.Module, question: str, tmp_path):
    model(BATCH).sum().backward()
    model.blocks[1].eval()
    gradients = [each.grad for each in model.parameters()]
    before = state_of(model)
    if question == "fit":
        sh.fit(model, BATCH, memory="64GiB", directory=tmp_path)
    elif question == "dry":
        sh.fit(model, BATCH, memory="64GiB", dry=True)
    else:
        advice = sh.advise(model, BATCH, directory=tmp_path, trials=question == "advise")
        if question == "apply":
            sh.apply(advice).revert()
    assert state_of(model) == before
    assert all(a.grad is b for a, b in zip(model.parameters(), gradients, strict=True))
    assert not model.blocks[1].training
    assert model.blocks[0].training
    assert not model._forward_hooks
    assert all("forward" not in vars(each) for each in model.modules())


def test_advice_tells_where_bytes_go_and_what_helps(model: nn.Module, tmp_path):
    optimizer = torch.optim.AdamW(model.parameters())
    advice = sh.advise(model, BATCH, optimizer=optimizer, directory=tmp_path, trials=False)
    size = BATCH.nbytes
    # Each block: the result of its linear layer, of the norm, of dropout (masks are of one byte).
    saved = sum(advice.activations.values())
    assert 8 * size <= saved <= 16 * size
    # The four blocks are alike: what is told is which of their layers it is.
    assert set(advice.activations) <= {f"blocks.*.{i}" for i in range(4)}
    assert advice.activations["blocks.*.0"] >= 4 * size
    parameters = sum(each.nbytes for each in model.parameters())
    assert advice.memory["optimizer states to come"] == pytest.approx(2 * parameters, rel=0.01)
    assert sum(advice.memory.values()) == advice.peak_bytes
    buffers = sum(each.nbytes for each in model.buffers())
    assert advice.memory["parameters and buffers"] == parameters + buffers
    assert advice.memory["the batch"] == size
    offloads = [each for each in advice.changes if each.name == "offload"]
    assert offloads
    assert all(each.is_safe and each.peak_bytes < advice.peak_bytes for each in offloads)
    shown = advice.describe()
    assert str(advice) == shown
    assert all(len(line) <= 100 for line in shown.splitlines() if not line.startswith("   > "))
    assert offloads[0].line in shown


def test_the_line_of_an_advice_runs_as_printed(model: nn.Module, tmp_path):
    advice = sh.advise(model, BATCH, directory=tmp_path, trials=False)
    script = {"sh": sh, "model": model}
    for each in advice.changes:
        exec(each.line, script)
        model(BATCH).sum().backward()
        assert script["offload"].report().counts.peak_saved_bytes > 0
        script["offload"].unwrap()


def test_advice_is_a_file(model: nn.Module, tmp_path):
    advice = sh.advise(model, BATCH, directory=tmp_path, trials=False)
    path = tmp_path / "advice.json"
    advice.save(path)
    loaded = sh.Advice.load(path)
    assert loaded.describe() == advice.describe()
    assert loaded == advice
    with pytest.raises(PlanError, match="knows no model"):
        sh.apply(loaded)
    path.write_text(json.dumps({"edition": -1}))
    with pytest.raises(PlanError, match="no advice of this version"):
        sh.Advice.load(path)


def test_what_is_applied_trains_to_the_same_bits(model: nn.Module, tmp_path):
    plain = copy.deepcopy(model)
    advice = sh.advise(model, BATCH, directory=tmp_path, trials=False)
    applied = sh.apply(advice, names=["offload"])
    assert applied.offload is not None
    assert applied.measured_seconds is not None
    assert "expected" in applied.describe()
    assert "measured" in applied.describe()
    for each in (plain, model):
        torch.manual_seed(1)
        each(BATCH).square().mean().backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert applied.offload.report().counts.offloaded > 0
    applied.revert()
    assert not model._forward_hooks


def test_convolutions_are_tried_and_put_back(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    kinds = [type(each) for each in model]
    advice = sh.advise(model, torch.randn(4, 3, 24, 24), directory=tmp_path)
    assert [type(each) for each in model] == kinds
    told = [each.name for each in advice.changes] + [
        each.partition(":")[0] for each in advice.notes
    ]
    assert {"replace_convs", "micro_batches", "bfloat16"} <= set(told)


def test_convolutions_are_timed_when_their_kernels_are_there(tmp_path, monkeypatch):
    reports: list[ReplacementReport] = []

    def replace_and_keep(model: nn.Module) -> ReplacementReport:
        reports.append(replace_convs(model))
        return reports[-1]

    monkeypatch.setattr("shorthaul.conv.replace_convs", replace_and_keep)
    model, batch = nn.Sequential(nn.Conv2d(1, 2, 1)), torch.randn(1, 1, 4, 4)
    with settings.override(cache_directory=tmp_path / "cold", compiling="background"):
        search = Search(model, batch, None, measure(model, batch, None), 2**30, tmp_path)
        list(search._try_convolutions())
    (layer,) = reports[0].layers
    assert layer.choices  # only then it had been compared, and what was faster had run
    assert compilers.is_idle()


@pytest.mark.parametrize("fails", ["maker", "step"])
def test_what_cannot_be_applied_leaves_the_model_as_it_was(
    model: nn.Module, tmp_path, monkeypatch, fails: str
):
    advice = sh.advise(model, BATCH, directory=tmp_path, trials=False)
    change = next(each for each in advice.changes if each.name == "offload")
    changes = (replace(change, name="accelerate"), change)
    if fails == "step":
        monkeypatch.setattr(applying, "time_compiled_steps", fail)
        changes = (change,)
    else:
        monkeypatch.setitem(applying._MAKERS, "offload", wrap_and_fail)
    hooks = [len(each._forward_hooks) for each in model.modules()]
    with pytest.raises(RuntimeError, match="as asked"):
        sh.apply(replace(advice, changes=changes))
    assert [len(each._forward_hooks) for each in model.modules()] == hooks
    model(BATCH).sum().backward()


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("as asked")


def wrap_and_fail(applied: Any, arguments: dict[str, Any]) -> None:
    applying._offload(applied, arguments)
    fail()


def test_lines_of_trials_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(Search, "_is_worth_it", lambda *_: True)
    model, batch = nn.Linear(8, 8), torch.randn(4, 8)
    advice = sh.advise(model, batch, directory=tmp_path)
    lines = {each.name: each.line for each in advice.changes}
    assert {"micro_batches", "bfloat16"} <= set(lines)
    for each in lines.values():
        model.zero_grad()
        exec(each, {"sh": sh, "torch": torch, "model": model, "batch": batch})
        assert model.weight.grad is not None


def test_a_trial_that_fails_is_a_note(tmp_path):
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) != 4096:
                raise ValueError("only whole batches")
            return (x @ self.weight).sin()

    advice = sh.advise(Picky(), torch.randn(4096, 64), directory=tmp_path)
    assert any("only whole batches" in each for each in advice.notes)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 256)
        self.conv = nn.Conv1d(256, 256, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.conv(self.words(ids).transpose(1, 2)).tanh().square()


def test_gathered_rows_and_states_that_are_there_have_rows_of_their_own(tmp_path):
    model, ids = Words(), torch.randint(1000, (64, 128))
    optimizer = torch.optim.AdamW(model.parameters())
    model(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    advice = sh.advise(model, ids, optimizer=optimizer, directory=tmp_path, trials=False)
    parameters = sum(each.nbytes for each in model.parameters())
    assert advice.memory["optimizer states"] == pytest.approx(2 * parameters, rel=0.01)
    assert "optimizer states to come" not in advice.memory
    assert advice.memory["activations: gathered rows"] == 64 * 128 * 256 * 4  # the words
    assert advice.memory["activations, saved by autograd"] >= 64 * 126 * 256 * 4  # of `tanh`
    assert sum(advice.memory.values()) == advice.peak_bytes
