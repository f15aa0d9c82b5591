"""Trainers with the callback do what they do without it, to the last bit, and leave nothing behind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.advice.watching.memory_shares import MemoryShares
from shorthaul.errors import PlanError, ProcessMemoryError
from shorthaul.storage import ThreadEngine, ThrottledEngine

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's libraries

VOCABULARY, LENGTH = 96, 32
METRICS = {
    "shorthaul_live_bytes",
    "shorthaul_peak_live_bytes",
    "shorthaul_written_bytes",
    "shorthaul_read_bytes",
    "shorthaul_stall_seconds",
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read once, on import: nothing is ever fetched here
    pytest.importorskip("accelerate", reason="`pip install accelerate`")
    return pytest.importorskip("transformers", reason="`pip install transformers`")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models as small as these only wait for the others
    yield
    torch.set_num_threads(threads)


def make_model(transformers: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=4
        )
    )


def make_rows(count: int = 24) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(2, VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": each, "labels": each} for each in words]


def make_callback(directory: Path, **knobs: Any) -> sh.integrations.ShorthaulCallback:
    return sh.integrations.ShorthaulCallback(
        directory=directory, **{"minimum_bytes": 1024, "engine": "thread", **knobs}
    )


def make_trainer(
    transformers: Any,
    folder: Path,
    *callbacks: Any,
    model: Any = None,
    rows: Any = None,
    **given: Any,
) -> Any:
    knobs: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "seed": 3,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return transformers.Trainer(
        model or make_model(transformers),
        transformers.TrainingArguments(str(folder), **{**knobs, **given}),
        train_dataset=rows or make_rows(),
        eval_dataset=make_rows(8),
        callbacks=list(callbacks),
    )


def losses_of(trainer: Any) -> list[float]:
    history = trainer.state.log_history
    return [each[name] for each in history for name in ("loss", "eval_loss") if name in each]


def require_same_training(plain: Any, ours: Any) -> None:
    assert losses_of(plain) == losses_of(ours)
    expected, got = plain.model.state_dict(), ours.model.state_dict()
    assert list(expected) == list(got)
    for name, each in expected.items():
        assert torch.equal(each, got[name]), name


def count_hooks(trainer: Any) -> int:
    modules = trainer.model.modules()
    return sum(len(each._forward_pre_hooks) + len(each._forward_hooks) for each in modules)


def is_plain(trainer: Any) -> bool:
    return count_hooks(trainer) == 0 and "training_step" not in vars(trainer)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"gradient_checkpointing": True},
        {"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 2},
    ],
    ids=["plain", "accumulation", "checkpointing", "evaluation"],
)
def test_losses_and_weights_are_bit_equal(transformers, tmp_path, given) -> None:
    plain = make_trainer(transformers, tmp_path / "plain", **given)
    plain.train()
    callback = make_callback(tmp_path)
    ours = make_trainer(transformers, tmp_path / "ours", callback, **given)
    ours.train()
    require_same_training(plain, ours)
    assert len(losses_of(ours)) >= 4
    assert ours.state.log_history[-1]["shorthaul_written_bytes"] > 0
    assert callback.steps == 4 * given.get("gradient_accumulation_steps", 1)
    assert count_hooks(plain) == count_hooks(ours)  # checkpointing leaves one of its own
    assert "training_step" not in vars(ours)


def test_under_a_memory_limit_blocks_are_computed_again_bit_for_bit(
    transformers, tmp_path, caplog, monkeypatch
) -> None:
    plain = make_trainer(transformers, tmp_path / "plain")
    plain.train()
    monkeypatch.setattr(MemoryShares, "require_budget", lambda _: 1400 * 1024)
    caplog.set_level(logging.INFO, "shorthaul")
    callback = make_callback(
        tmp_path, memory="64GiB", engine=lambda: ThrottledEngine(ThreadEngine(), 5e6)
    )
    ours = make_trainer(transformers, tmp_path / "ours", callback)
    ours.train()
    require_same_training(plain, ours)
    (planned,) = (each for each in caplog.messages if each.startswith("plan: "))
    assert "blocks again" in planned  # the disk is slow
    assert any(each.startswith("measured: ") for each in caplog.messages)
    assert is_plain(ours)
    assert all("forward" not in vars(each) for each in ours.model.modules())


def test_the_trainer_logs_and_reports_the_metrics(transformers, tmp_path, caplog) -> None:
    seen: list[dict[str, float]] = []

    class Reporter(transformers.TrainerCallback):  # as TensorBoard's, made before ours
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            seen.append(dict(logs))

    callback = make_callback(tmp_path)
    trainer = make_trainer(
        transformers,
        tmp_path / "trainer",
        Reporter(),
        callback,
        eval_strategy="steps",
        eval_steps=4,
    )
    with caplog.at_level(logging.INFO, "shorthaul"):
        done = trainer.train()
    of_training = [each for each in seen if "eval_loss" not in each]
    assert len(of_training) == 5  # four steps, and the end
    assert len(seen) == 6
    for each in of_training:
        assert each.keys() >= METRICS
    assert not METRICS & next(each for each in seen if "eval_loss" in each).keys()
    written = [each["shorthaul_written_bytes"] for each in of_training]
    assert written == sorted(written)
    assert written[0] < written[-1]  # what is still on its way when it is needed is not written
    assert done.metrics.keys() >= METRICS
    json.dumps(trainer.state.log_history)
    assert [each.keys() >= METRICS for each in trainer.state.log_history].count(True) == 5
    lines = [each.message for each in caplog.records if each.name == "shorthaul"]
    assert len(lines) == 1
    assert lines[0].startswith("4 training steps: at most ")
    assert "\n" not in lines[0]


def test_checkpoints_are_those_of_a_plain_trainer_and_resume(transformers, tmp_path) -> None:
    given = {"save_strategy": "steps", "save_steps": 2}
    plain = make_trainer(transformers, tmp_path / "plain", **given)
    plain.train()
    make_trainer(transformers, tmp_path / "ours", make_callback(tmp_path), **given).train()
    for name in ("model.safetensors", "config.json"):
        saved = [tmp_path / side / "checkpoint-2" / name for side in ("plain", "ours")]
        assert saved[0].read_bytes() == saved[1].read_bytes()
    # What was written with the callback is gone on with, with and without it.
    for callbacks in ([make_callback(tmp_path)], []):
        again = make_trainer(transformers, tmp_path / "again", *callbacks, **given)
        again.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-2"))
        require_same_training(plain, again)


class BoomError(RuntimeError):
    pass


class FailingRows(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.rows = make_rows()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Any:
        raise BoomError


def train_again(transformers: Any, trainer: Any) -> None:
    transformers.set_seed(5)  # a trainer does so only when it is made
    trainer.train()


def test_after_an_exception_in_a_step_nothing_is_left(transformers, tmp_path, monkeypatch) -> None:
    callback = make_callback(tmp_path)
    trainer = make_trainer(transformers, tmp_path / "ours", callback)

    def fail(*_: Any) -> None:
        raise BoomError

    with monkeypatch.context() as patch:
        patch.setattr(trainer.model.transformer.h[1].mlp, "forward", fail)
        with pytest.raises(BoomError):
            trainer.train()
    assert callback.offload is None
    assert is_plain(trainer)
    train_again(transformers, trainer)
    assert callback.steps == 4
    plain = make_trainer(transformers, tmp_path / "plain")
    train_again(transformers, plain)
    assert losses_of(plain) == losses_of(trainer)


def test_a_training_broken_off_between_steps_is_ended_by_the_next(transformers, tmp_path) -> None:
    callback = make_callback(tmp_path)
    trainer = make_trainer(transformers, tmp_path / "ours", callback, rows=FailingRows())
    with pytest.raises(BoomError):
        trainer.train()
    left = callback.offload
    assert left is not None
    trainer.train_dataset = make_rows()
    train_again(transformers, trainer)
    assert callback.offload is not left
    assert callback.offload is None
    assert is_plain(trainer)
    plain = make_trainer(transformers, tmp_path / "plain")
    train_again(transformers, plain)
    assert losses_of(plain) == losses_of(trainer)


def test_memory_makes_the_budget(transformers, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "shorthaul.advice.watching.memory_shares.resident_bytes", lambda: 50 * 2**20
    )
    plain = make_trainer(transformers, tmp_path / "plain")
    plain.train()
    callback = make_callback(tmp_path, memory="60MiB", minimum_bytes=1024)
    trainer = make_trainer(transformers, tmp_path / "ours", callback)
    trainer.train()
    require_same_training(plain, trainer)
    shares = callback.shares
    assert shares is not None
    parameter_bytes = sum(each.nbytes for each in trainer.model.parameters())
    assert shares.gradient_bytes == parameter_bytes
    assert 2 * parameter_bytes <= shares.optimizer_bytes < 2.01 * parameter_bytes
    assert shares.budget_bytes == 54 * 2**20 - shares.fixed_bytes
    assert trainer.state.log_history[-1]["shorthaul_peak_live_bytes"] <= shares.budget_bytes


def test_what_does_not_fit_is_an_error_that_names_the_least(
    transformers, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(
        "shorthaul.advice.watching.memory_shares.resident_bytes", lambda: 50 * 2**20
    )
    callback = make_callback(tmp_path, memory="50MiB")
    trainer = make_trainer(transformers, tmp_path / "ours", callback, max_steps=1)
    with pytest.raises(ProcessMemoryError, match="resident now 50") as caught:
        trainer.train()
    assert is_plain(trainer)
    # So much leaves nothing for activations. What the steps then name is met at one place of the model
    # after the other, so it grows until it is enough.
    named_bytes, times = caught.value.least_bytes + 2, 0
    while named_bytes is not None:
        callback.memory_bytes = named_bytes
        named_bytes = least_of(trainer)
        assert named_bytes is None or named_bytes > callback.memory_bytes
        assert is_plain(trainer)
        times += 1
    assert 1 < times < 20


def least_of(trainer: Any) -> int | None:
    """The least memory that training says it needs; `None` when it has enough."""
    try:
        trainer.train()
    except ProcessMemoryError as error:
        return error.least_bytes
    return None


def test_memory_and_budget_together_are_refused(transformers) -> None:
    with pytest.raises(PlanError, match="not both"):
        sh.integrations.ShorthaulCallback(memory="8GiB", budget="1GiB")
    with pytest.raises(ValueError, match="expected bytes such as"):
        sh.integrations.ShorthaulCallback(memory="much")


def test_outside_of_a_trainer_it_says_what_to_use(transformers, tmp_path) -> None:
    callback = make_callback(tmp_path)
    with pytest.raises(PlanError, match="loop of your own"):
        callback.on_train_begin(None, None, None)


def test_without_transformers_the_error_names_the_extra() -> None:
    script = """
import sys
sys.modules["transformers"] = None
import shorthaul as sh
try:
    sh.integrations.ShorthaulCallback
except sh.errors.MissingExtraError as error:
    print(error)
assert "torch" in sys.modules
"""
    done = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == (
        "ShorthaulCallback needs the package `transformers`, which is not installed.\n"
        "  pip install 'shorthaul[hf]'\n"
    )
