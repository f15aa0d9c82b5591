"""Ctrl-C at any line of a layer's first calls arrives, and the next call is right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.jit.compiling.loading import wait_for_compilers
from shorthaul.jit.compiling.pool import compilers
from shorthaul.settings import settings
from tests.conv.nothing_compiled import forget_kernels, nothing_compiled
from tests.conv.tolerances import require_close
from tests.injected_interrupts import find_places, run_interrupted

EVERY = 37  # of the lines, in the quick tests
FOLDERS = ("conv/", "jit/")


class FirstCalls:
    """What is done at a layer's first calls: kernels are found, weights are packed, both are remembered."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.image, self.layer = torch.randn(2, 5, 9, 10), sh.Conv2d(5, 19, 3, padding=1)
        weight, bias = (each.detach().double() for each in self.layer.parameters())
        self.expected = torch.conv2d(self.image.double(), weight, bias, padding=1)

    def train(self) -> None:
        image = self.image.clone().requires_grad_()
        output = self.layer(image)
        require_close(output, self.expected)
        found = torch.autograd.grad(output.square().sum(), [image, *self.layer.parameters()])
        assert all(bool(each.isfinite().all()) for each in found)

    def infer(self) -> None:
        with torch.no_grad():
            for _ in range(2):
                require_close(self.layer(self.image), self.expected)

    def anew(self) -> None:
        forget_kernels()
        self.layer.weight = torch.nn.Parameter(self.layer.weight.detach())  # nobody has packed it
        self.train()
        self.infer()


def interrupt_each_line(case: FirstCalls, every: int) -> None:
    case.anew()
    arrived = 0
    for place in find_places(case.anew, *FOLDERS)[::every]:
        arrived += run_interrupted(case.anew, place)
        wait_for_compilers()
        case.train()
        case.infer()
        assert compilers.is_idle(), place
    assert arrived > 3


def test_some_lines() -> None:
    interrupt_each_line(FirstCalls(), EVERY)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_line() -> None:
    interrupt_each_line(FirstCalls(), 1)


def interrupt_warming_up(folder: Path, every: int) -> None:
    case, number, arrived = FirstCalls(), 0, 0

    def warm_up() -> None:
        nonlocal number
        number += 1
        forget_kernels()
        with settings.override(cache_directory=folder / str(number)):  # where nothing is compiled
            sh.warm_up(case.layer, case.image, is_training=False, compare=False, is_quiet=True)

    warm_up()
    before = {name: each.clone() for name, each in case.layer.state_dict().items()}
    for place in find_places(warm_up, "conv/models/warm_up", "jit/compiling/")[::every]:
        arrived += run_interrupted(warm_up, place)
        wait_for_compilers()
        assert compilers.is_idle(), place
        assert all(
            torch.equal(each, before[name]) for name, each in case.layer.state_dict().items()
        )
        case.infer()
    assert arrived > 3


def test_some_lines_of_warming_up(tmp_path: Path) -> None:
    with nothing_compiled(tmp_path):
        interrupt_warming_up(tmp_path, 11)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_line_of_warming_up(tmp_path: Path) -> None:
    with nothing_compiled(tmp_path):
        interrupt_warming_up(tmp_path, 1)
