"""Blocks that nobody marked are computed again, bit for bit, or left alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.advice.holding.chosen_plan import ChosenPlan
from shorthaul.advice.holding.repeated_blocks import RepeatedBlocks
from shorthaul.errors import BlockChangedError
from shorthaul.offload.policy.policy import OffloadPlanned
from shorthaul.storage import ThreadEngine, ThrottledEngine

WIDTH, ROWS = 64, 512  # 128 KiB for each tensor that is saved


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
        if isinstance(scale, dict):
            scale = scale["scale"]
        return x + scale * self.drop(self.second(torch.tanh(self.first(x))))


def make_model(block: Callable[[], nn.Module] = Block) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(block() for _ in range(6)))


def slow_disk() -> ThrottledEngine:
    return ThrottledEngine(ThreadEngine(), 20e6)


def train(model: nn.Module, around: Callable[[], Any]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(ROWS, WIDTH)
        with around():
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach().clone() for each in model.parameters()]


def offloading(directory: Path, **knobs: Any) -> Any:
    shared = {"budget": "2MiB", "minimum_bytes": 4096, "engine": slow_disk}
    return sh.offload_activations(directory, **(shared | knobs))


def train_under_a_plan(directory: Path, model: nn.Module, **knobs: Any) -> tuple[Any, Any, Any]:
    blocks = RepeatedBlocks(model)
    offload = offloading(directory, **knobs)

    def around() -> Any:
        from contextlib import ExitStack

        stack = ExitStack()
        stack.enter_context(blocks.marked())
        stack.enter_context(offload)
        return stack

    weights = train(model, around)
    counts, plan = offload.report().counts, ChosenPlan.make(offload)
    offload.close()
    return weights, counts, plan


def test_the_plan_has_blocks_computed_again_and_weights_are_bit_equal(tmp_path):
    from contextlib import nullcontext

    plain = train(make_model(), nullcontext)
    model = make_model()
    weights, counts, plan = train_under_a_plan(tmp_path, model)
    assert counts.recomputed_regions > 0  # the disk is slow: to compute again is faster
    assert all(map(torch.equal, plain, weights))
    assert plan.recomputed_blocks > 0
    assert plan.measured_live_bytes <= plan.budget_bytes
    assert plan.expected_live_bytes <= plan.budget_bytes < plan.all_kept_bytes
    assert plan.measured_seconds > 0
    lines = plan.describe()
    assert "blocks again" in lines[0]
    assert [each.partition(":")[0] for each in lines] == ["plan", "expected", "measured"]
    # Between steps it is a plain model.
    assert all("forward" not in vars(each) for each in model.modules())
    assert pickle.dumps(model.state_dict())
    assert type(copy.deepcopy(model)) is nn.Sequential


class ChangesWhatItIsGiven(Block):
    def forward(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
        hidden = torch.tanh(x)  # which saves its result, so that PyTorch lets `x` be changed
        y = self.second(torch.tanh(self.first(hidden)))
        x.detach().mul_(0.5)
        return y


class Caches(nn.Module):
    """Blocks that get an object which a second call would change again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.blocks:
            x = each(x, scale=Cache({"scale": 1.0}))
        return x


class Cache(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("make", [lambda: make_model(ChangesWhatItIsGiven), Caches])
def test_what_cannot_be_repeated_is_not(tmp_path, make):
    from contextlib import nullcontext

    torch.manual_seed(0)
    plain = train(make(), nullcontext)
    torch.manual_seed(0)
    weights, counts, _ = train_under_a_plan(tmp_path, make())
    assert counts.recomputed_regions == 0
    assert all(map(torch.equal, plain, weights))


def test_what_a_step_turned_out_is_said(tmp_path):
    model = make_model(ChangesWhatItIsGiven)
    blocks = RepeatedBlocks(model)
    assert blocks.left == {}
    with blocks.marked(), offloading(tmp_path) as offload:
        model(torch.randn(ROWS, WIDTH, requires_grad=True) * 1.0).sum().backward()
    assert set(blocks.note_left().values()) == {"it changes what it is given"}
    offload.close()


def test_parameters_that_change_before_the_backward_pass_are_an_error(tmp_path):
    model = make_model()
    blocks, offload = RepeatedBlocks(model), offloading(tmp_path)
    policy = offload.policy
    assert isinstance(policy, OffloadPlanned)
    policy.recomputed = frozenset({0})
    with blocks.marked(), offload:
        loss = model(torch.randn(ROWS, WIDTH)).sum()
    with torch.no_grad():
        model[0].first.bias += 1  # which plain PyTorch does not need for its gradients
    with pytest.raises(BlockChangedError, match="the block 0 cannot be computed again"):
        loss.backward()
    offload.close()


def test_a_hook_that_is_put_on_later_is_seen(tmp_path):
    model = make_model()
    blocks = RepeatedBlocks(model)
    model[3].first.register_forward_hook(lambda *_: None)
    with blocks.marked():
        assert "forward" in vars(model[2])
        assert "forward" not in vars(model[3])
        with blocks.marked():  # a call inside of a call
            pass
        assert "forward" in vars(model[2])
    assert blocks.note_left() == {"3": "hooks, or another `forward`, were put on it"}
