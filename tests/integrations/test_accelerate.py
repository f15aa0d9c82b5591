"""A loop of Accelerate with the hook trains as without it, to the last bit, and ends plain."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.errors import ProcessMemoryError

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's libraries


@pytest.fixture(scope="module")
def accelerate() -> Any:
    return pytest.importorskip("accelerate", reason="`pip install accelerate`")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models as small as these only wait for the others
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _fresh_accelerators(accelerate) -> Iterator[None]:
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)  # shared by all of a process


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))


def train(accelerate: Any, offload: Any = None, **given: Any) -> tuple[list[float], nn.Module, Any]:
    """Two epochs, with an evaluation after each; offload: what to call with the accelerator."""
    accelerator = accelerate.Accelerator(cpu=True, **given)
    handle = None if offload is None else offload(accelerator)
    model = make_model()
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(rows)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), 1e-2),
        torch.utils.data.DataLoader(data, batch_size=16),
    )
    losses = []
    for _ in range(2):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        with torch.no_grad():
            losses.append(model(rows).square().mean().item())
    return losses, model, (accelerator, handle)


def require_plain(accelerator: Any, model: nn.Module) -> None:
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert (
        not {"prepare", "backward", "log", "free_memory", "end_training"} & vars(accelerator).keys()
    )


def make_hook(folder: Path, **knobs: Any) -> Any:
    given = {"minimum_bytes": 1024, "engine": "thread", **knobs}
    return lambda accelerator: sh.integrations.offload_prepared(
        accelerator, directory=folder, **given
    )


@pytest.mark.parametrize(
    "given", [{}, {"gradient_accumulation_steps": 2}, {"mixed_precision": "bf16"}], ids=str
)
def test_losses_and_weights_are_bit_equal(accelerate, tmp_path, given) -> None:
    expected, plain, _ = train(accelerate, **given)
    got, ours, (accelerator, handle) = train(accelerate, make_hook(tmp_path), **given)
    assert expected == got
    for name, each in plain.state_dict().items():
        assert torch.equal(each, ours.state_dict()[name]), name
    assert handle.steps == 8
    assert handle.report().counts.offloaded >= 8
    copy.deepcopy(ours)(torch.randn(64, 64)).sum().backward()  # a copy is a plain model
    assert handle.steps == 8
    accelerator.end_training()
    assert handle.report() is None
    require_plain(accelerator, ours)


def test_it_logs_with_the_accelerator_and_ends_with_a_line(accelerate, tmp_path, caplog) -> None:
    from accelerate.tracking import GeneralTracker

    seen: list[dict[str, float]] = []

    class Tracker(GeneralTracker):
        name = "list"
        requires_logging_directory = False
        tracker = None

        def store_init_configuration(self, values: Any) -> None: ...

        def log(self, values: Any, step: Any = None, **_: Any) -> None:
            seen.append(values)

    _, _, (accelerator, handle) = train(
        accelerate, make_hook(tmp_path), log_with=Tracker(_blank=True)
    )
    accelerator.init_trackers("project")
    accelerator.log({"loss": 1.0}, step=3)
    assert seen == [{"loss": 1.0, **handle.metrics()}]
    assert seen[0]["shorthaul_written_bytes"] > 0
    with caplog.at_level(logging.INFO, "shorthaul"):
        accelerator.free_memory()
    (line,) = [each.message for each in caplog.records if each.name == "shorthaul"]
    assert line.startswith("8 training steps: at most ")


def test_memory_makes_the_budget_of_all_that_was_prepared(
    accelerate, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(
        "shorthaul.advice.watching.memory_shares.resident_bytes", lambda: 50 * 2**20
    )
    expected, _, _ = train(accelerate)
    got, model, (_, handle) = train(accelerate, make_hook(tmp_path, memory="60MiB"))
    assert expected == got
    parameter_bytes = sum(each.nbytes for each in model.parameters())
    assert handle.shares.gradient_bytes == parameter_bytes
    assert 2 * parameter_bytes <= handle.shares.optimizer_bytes < 2.01 * parameter_bytes
    assert handle.report().counts.peak_live_bytes <= handle.shares.budget_bytes
    handle.remove()
    with pytest.raises(ProcessMemoryError, match="resident now 50"):
        train(accelerate, make_hook(tmp_path, memory="50MiB"))


def test_an_exception_in_a_call_leaves_no_hook_on(accelerate, tmp_path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    handle = make_hook(tmp_path)(accelerator)
    model = accelerator.prepare(make_model())
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 3))
    assert not torch._C._autograd._top_saved_tensors_default_hooks(True)
    model(torch.randn(64, 64)).sum().backward()
    assert handle.report().counts.offloaded > 0
    handle.remove()
    require_plain(accelerator, model)


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_on_one_accelerator_end_in_any_order(accelerate, tmp_path, first_ends_first) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    first, second = (make_hook(tmp_path)(accelerator) for _ in range(2))
    earlier, later = (first, second) if first_ends_first else (second, first)
    earlier.remove()
    assert "prepare" in vars(accelerator)  # the one that goes on
    model = accelerator.prepare(make_model())
    accelerator.backward(model(torch.randn(64, 64)).sum())
    assert later.report().counts.offloaded > 0
    assert earlier.report() is None
    later.remove()
    assert not model._forward_hooks
    again = accelerator.prepare(make_model())
    assert not again._forward_hooks
    accelerator.end_training()
