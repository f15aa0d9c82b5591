from __future__ import annotations

import ctypes
import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.advice import Fit, Needs, fitting
from shorthaul.advice.blocks import find_blocks
from shorthaul.advice.watching.batches import split_batch
from shorthaul.advice.watching.measurement import Step, measure_before, time_steps
from shorthaul.errors import MachineMemoryError, NoFitError, OffloadBudgetError, PlanError
from tests.own_process import in_own_process


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)))


def memory_for(step_bytes: int) -> int:
    return measure_before() + step_bytes


BATCH = torch.randn(8192, 256)  # each layer saves two of its 8 MiB


class HeapNumbers(ctypes.Structure):
    """What `mallinfo2` returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def free_heap_bytes() -> int:
    """What the C library's heap holds although nobody uses it, resident or not."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("the C library does not tell what its heap holds")
    library.mallinfo2.restype = HeapNumbers
    return int(library.mallinfo2().fordblks)


def test_room_for_everything_needs_no_change(tmp_path):
    found = sh.fit(make_model(), BATCH, memory="64GiB", directory=tmp_path)
    assert isinstance(found, Fit)
    assert (found.micro_batches, found.budget_bytes, found.lines) == (1, None, ())
    assert found.wrap(make_model()) is None
    assert "nothing has to be changed" in found.describe()


@in_own_process
def test_what_does_not_fit_is_offloaded_or_cut_and_measured(tmp_path):
    model = make_model()
    memory_bytes = memory_for(110 * 2**20)
    found = sh.fit(model, BATCH, memory=memory_bytes, directory=tmp_path)
    assert isinstance(found, Fit)
    assert found.lines
    assert found.measured_bytes is not None
    assert found.measured_bytes <= memory_bytes
    found.save(tmp_path / "fit.json")
    assert json.loads((tmp_path / "fit.json").read_text())["memory_bytes"] == memory_bytes
    assert "measured" in found.describe()
    assert [len(each) for each in found.split(BATCH)] == (
        [8192 // found.micro_batches] * found.micro_batches
    )


@in_own_process
def test_a_whole_batch_that_does_not_fit_is_offloaded_under_the_budget(tmp_path):
    model = make_model()
    memory_bytes = memory_for(110 * 2**20)
    found = sh.fit(model, BATCH, memory=memory_bytes, directory=tmp_path, micro_batches=[1])
    assert isinstance(found, Fit)
    assert free_heap_bytes() < 32 * 2**20  # else steps took from there, and did not give back
    assert found.budget_bytes is not None
    offload = found.wrap(model)
    assert offload is not None
    for _ in range(2):
        model(BATCH).sum().backward()
    assert offload.report().counts.peak_live_bytes <= found.budget_bytes
    offload.unwrap()
    script = {"sh": sh, "model": model}
    exec(found.lines[0], script)
    script["offload"].unwrap()


def test_what_fits_in_no_way_says_the_least_and_why(tmp_path):
    with pytest.raises(NoFitError, match=r"no plan fits 1\.0 MiB") as caught:
        sh.fit(make_model(), BATCH, memory="1MiB", directory=tmp_path, micro_batches=[1, 2])
    assert "resident before" in str(caught.value)
    assert caught.value.least_bytes > 100 * 2**20


def require_consistent(error: NoFitError) -> None:
    assert error.least_bytes > error.memory_bytes


def test_a_budget_that_turns_out_too_small_is_no_contradiction(tmp_path, monkeypatch):
    memory_bytes = memory_for(150 * 2**20)

    def fail_when_offloaded(*given: Any, warm_ups: int = 1, **more: Any) -> Step:
        if warm_ups == 2:
            raise OffloadBudgetError(2**40, 2**20, "by a fake")
        return time_steps(*given, warm_ups=warm_ups, **more)

    monkeypatch.setattr(fitting, "time_steps", fail_when_offloaded)
    with pytest.raises(NoFitError, match=r"with the whole batch of 8,192 samples") as caught:
        sh.fit(make_model(), BATCH, memory=memory_bytes, directory=tmp_path, micro_batches=[1])
    require_consistent(caught.value)
    assert "more than was expected" in str(caught.value)


def test_a_disk_that_takes_no_more_is_the_reason_that_is_given(tmp_path, monkeypatch):
    memory_bytes = memory_for(150 * 2**20)

    def fail_when_offloaded(*given: Any, warm_ups: int = 1, **more: Any) -> Step:
        if warm_ups == 2:
            raise OffloadBudgetError(2**40, 2**20, "by a fake", refusal="it is full")
        return time_steps(*given, warm_ups=warm_ups, **more)

    monkeypatch.setattr(fitting, "time_steps", fail_when_offloaded)
    with pytest.raises(OffloadBudgetError, match="the disk takes no more: it is full"):
        sh.fit(make_model(), BATCH, memory=memory_bytes, directory=tmp_path, micro_batches=[1])


def test_where_nothing_is_large_enough_to_offload_everything_is_kept(tmp_path):
    small = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    with pytest.raises(NoFitError, match="samples, with everything kept") as caught:
        sh.fit(small, torch.randn(8, 16), memory="1MiB", directory=tmp_path, micro_batches=[1])
    require_consistent(caught.value)


def test_a_machine_without_room_for_one_step_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "usable_bytes", lambda: 2**20)
    with pytest.raises(MachineMemoryError, match=r"in 2 micro-batches of 4,096 samples it needs"):
        sh.fit(make_model(), BATCH, memory="8GiB", directory=tmp_path, micro_batches=[1, 2])


def test_a_batch_too_large_for_the_machine_is_not_run_to_find_that_out(tmp_path, monkeypatch):
    ran: list[int] = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.sum().item() < math.inf  # which needs data
            ran.append(len(x))
            return self.layers(x)

    machine_bytes = memory_for(70 * 2**20)  # of which a tenth is left to others
    monkeypatch.setattr(fitting, "usable_bytes", lambda: machine_bytes * 10 // 9)
    found = sh.fit(Looks(), BATCH, memory="8GiB", directory=tmp_path, micro_batches=[1, 2, 4, 8])
    assert isinstance(found, Fit)
    assert found.micro_batches > 1
    assert ran
    assert max(ran) < len(BATCH)


def test_a_dry_fit_knows_meta_models_and_runs_nothing():
    with torch.device("meta"):
        model = make_model()
    batch = torch.empty(8192, 256, device="meta")
    optimizer = torch.optim.AdamW(model.parameters())
    needs = sh.fit(model, batch, memory="64GiB", optimizer=optimizer, dry=True)
    assert isinstance(needs, Needs)
    assert needs.fits
    assert needs.parameter_bytes == needs.gradient_bytes == 8 * (256 * 256 + 256) * 4
    assert needs.coming_bytes == pytest.approx(2 * needs.parameter_bytes, rel=0.01)
    whole, half = needs.rows[:2]
    # Sixteen results of 8 MiB less the last, which nothing saves.
    assert whole.kept_bytes - half.kept_bytes == pytest.approx(16 * 8 * 2**20 // 2, rel=0.2)
    assert whole.least_bytes < whole.kept_bytes - 60 * 2**20
    none = sh.fit(model, batch, memory="1MiB", dry=True)
    assert isinstance(none, Needs)
    assert not none.fits
    assert "  no" in none.describe()


def test_a_model_that_needs_data_says_so_when_it_is_played_through():
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight if x.sum().item() > 0 else x

    with pytest.raises(PlanError, match="Looks cannot be played through without data"):
        sh.fit(Looks(), torch.ones(2, 4), memory="1GiB", dry=True)


def test_batches_are_cut_in_equal_parts():
    first, second = split_batch({"x": torch.arange(4), "scale": 2}, 2)
    assert first["x"].tolist() == [0, 1]
    assert second == {"x": second["x"], "scale": 2}
    with pytest.raises(PlanError, match="3 samples cannot be cut into 2 equal parts"):
        split_batch(torch.ones(3), 2)
    with pytest.raises(PlanError, match="no common first dimension"):
        split_batch((torch.ones(3), torch.ones(4)), 2)


def test_blocks_are_found_and_named_so_that_python_finds_them():
    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 8)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 8) for _ in range(3))

    model = GPT()
    blocks = find_blocks(model)
    assert blocks is not None
    assert blocks.modules == tuple(model.layers)
    assert eval(blocks.expression, {"model": model}) is nn.TransformerEncoderLayer
    nested = nn.Sequential(nn.Linear(2, 2), make_model())
    found = find_blocks(nested)
    assert found is not None
    assert eval(found.expression, {"model": nested}) == list(nested[1])
    assert find_blocks(nn.Linear(2, 2)) is None
