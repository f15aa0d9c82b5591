"""Lightning's trainers with the callback do what they do without it, to the last bit."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.errors import MissingExtraError, ProcessMemoryError

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's libraries

METRICS = {
    "shorthaul_live_bytes",
    "shorthaul_peak_live_bytes",
    "shorthaul_written_bytes",
    "shorthaul_read_bytes",
    "shorthaul_stall_seconds",
}


@pytest.fixture(scope="module", params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param, reason="`pip install lightning`")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models as small as these only wait for the others
    yield
    torch.set_num_threads(threads)


class BoomError(RuntimeError):
    pass


def make_module(lightning: Any, *, automatic: bool = True, fails_at: int | None = None) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = automatic
            self.body = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if batch_idx == fails_at:
                raise BoomError
            (rows,) = batch
            loss = self.body(rows).square().mean()
            self.losses.append(float(loss))
            if not automatic:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("valid", self.body(batch[0]).square().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    torch.manual_seed(0)
    return Module()


def make_loader() -> Any:
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=16)


def make_callback(folder: Path, **knobs: Any) -> Any:
    given = {"minimum_bytes": 1024, "engine": "thread", **knobs}
    return sh.integrations.LightningCallback(directory=folder, **given)


def make_trainer(lightning: Any, folder: Path, *callbacks: Any, **given: Any) -> Any:
    knobs = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    return lightning.Trainer(
        default_root_dir=folder, callbacks=list(callbacks), **{**knobs, **given}
    )


def require_same(plain: Any, ours: Any) -> None:
    assert plain.losses == ours.losses
    expected, got = plain.state_dict(), ours.state_dict()
    assert list(expected) == list(got)
    for name, each in expected.items():
        assert torch.equal(each, got[name]), name


@pytest.mark.parametrize(
    ("automatic", "given"),
    [
        (True, {}),
        (True, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}),
        (True, {"precision": "bf16-mixed"}),
        (False, {}),
    ],
    ids=["plain", "accumulation", "bf16", "manual"],
)
def test_losses_and_weights_are_bit_equal(lightning, tmp_path, automatic, given) -> None:
    plain = make_module(lightning, automatic=automatic)
    make_trainer(lightning, tmp_path, **given).fit(plain, make_loader(), make_loader())
    ours = make_module(lightning, automatic=automatic)
    callback = make_callback(tmp_path)
    trainer = make_trainer(lightning, tmp_path, callback, **given)
    trainer.fit(ours, make_loader(), make_loader())
    require_same(plain, ours)
    assert callback.steps == len(ours.losses) == 8
    assert trainer.callback_metrics["shorthaul_written_bytes"] > 0
    assert callback.offload is None
    assert not {"training_step", "backward"} & vars(trainer.strategy).keys()
    pickle.dumps(make_callback(tmp_path))  # as processes that are spawned get it


def test_the_trainers_logger_gets_the_metrics(lightning, tmp_path, caplog) -> None:
    if lightning.__name__ == "lightning.pytorch":
        from lightning.pytorch.loggers import CSVLogger
    else:
        from pytorch_lightning.loggers import CSVLogger
    logger = CSVLogger(tmp_path)
    trainer = make_trainer(lightning, tmp_path, make_callback(tmp_path), logger=logger)
    with caplog.at_level(logging.INFO, "shorthaul"):
        trainer.fit(make_module(lightning), make_loader())
    header, *rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    columns = header.split(",")
    assert set(columns) >= METRICS
    written = [float(each.split(",")[columns.index("shorthaul_written_bytes")]) for each in rows]
    assert len(written) == 8
    assert written == sorted(written)
    assert written[0] < written[-1]  # what is still on its way when it is needed is not written
    (line,) = [each.message for each in caplog.records if each.name == "shorthaul"]
    assert line.startswith("8 training steps: at most ")


def test_checkpoints_are_plain_and_resume(lightning, tmp_path) -> None:
    trainer = make_trainer(lightning, tmp_path, make_callback(tmp_path), max_epochs=1)
    trainer.fit(make_module(lightning), make_loader())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    whole = make_module(lightning)
    make_trainer(lightning, tmp_path).fit(whole, make_loader())
    for callbacks in ([make_callback(tmp_path)], []):
        again = make_module(lightning)
        make_trainer(lightning, tmp_path, *callbacks).fit(
            again, make_loader(), ckpt_path=tmp_path / "half.ckpt"
        )
        assert again.losses == whole.losses[4:]


def test_after_an_exception_nothing_is_left(lightning, tmp_path) -> None:
    callback = make_callback(tmp_path)
    trainer = make_trainer(lightning, tmp_path, callback)
    with pytest.raises(BoomError):
        trainer.fit(make_module(lightning, fails_at=2), make_loader())
    assert callback.offload is None
    assert callback.steps == 2
    assert not {"training_step", "backward"} & vars(trainer.strategy).keys()
    assert not torch._C._autograd._top_saved_tensors_default_hooks(True)


def test_memory_makes_the_budget(lightning, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "shorthaul.advice.watching.memory_shares.resident_bytes", lambda: 50 * 2**20
    )
    callback = make_callback(tmp_path, memory="60MiB")
    ours = make_module(lightning)
    make_trainer(lightning, tmp_path, callback).fit(ours, make_loader())
    parameter_bytes = sum(each.nbytes for each in ours.parameters())
    assert callback.shares.gradient_bytes == parameter_bytes
    assert 2 * parameter_bytes <= callback.shares.optimizer_bytes < 2.01 * parameter_bytes
    callback = make_callback(tmp_path, memory="50MiB")
    with pytest.raises(ProcessMemoryError, match="resident now 50"):
        make_trainer(lightning, tmp_path, callback).fit(make_module(lightning), make_loader())
    assert callback.offload is None


def test_without_lightning_the_error_names_the_extra(monkeypatch) -> None:
    from shorthaul.integrations import lightning

    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", refuse)
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(pytest.raises(MissingExtraError))
        lightning._find_callback_classes()
    assert "pip install 'shorthaul[lightning]'" in str(caught.value)
