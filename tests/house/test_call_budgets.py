"""How many Python functions of ours a small call goes through: a budget for each path.

A call of Python takes about as long as a kernel over a few values. Counts do not depend on the machine or on what
else it does; PyTorch's own functions are not counted, so that they do not depend on its version either.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch

import shorthaul as sh

SOURCE = str(Path(sh.__file__).parent)
CALLER = "<caller of a kernel>"


def count_calls(run: Callable[[], object]) -> Counter[str]:
    """Our functions that a call goes through, after some to get to know it."""
    for _ in range(3):
        run()
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # Python 3.12 has no frames for comprehensions: they are not counted anywhere.
        is_ours = code.co_filename.startswith(SOURCE) or code.co_filename == CALLER
        if (
            event == "call"
            and is_ours
            and code.co_name not in ("<listcomp>", "<dictcomp>", "<setcomp>")
        ):
            calls[code.co_name] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def _conv_inference() -> Callable[[], object]:
    layer, image = sh.Conv2d(8, 8, 3, padding=1), torch.randn(1, 8, 8, 8)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return layer(image)

    return run


def _conv_training() -> Callable[[], object]:
    layer, image = sh.Conv2d(8, 8, 3, padding=1), torch.randn(1, 8, 8, 8, requires_grad=True)
    gradient = torch.ones(1, 8, 8, 8)
    return lambda: layer(image).backward(gradient)


def _gather() -> Callable[[], object]:
    table, ids = sh.unified(torch.randn(1000, 16)), torch.arange(10)
    return lambda: table[ids]


def _relational(*, is_training: bool) -> Callable[[], object]:
    edges, types = torch.randint(0, 50, (2, 100)), torch.randint(0, 3, (100,))
    layer, features = sh.relational.RGCNConv(16, 16, 3), torch.randn(50, 16)
    gradient = torch.ones(50, 16)

    def run() -> None:
        with torch.set_grad_enabled(is_training):
            output = layer(features, edges, types)
            if is_training:
                output.backward(gradient)

    return run


def _saved_tensor() -> Callable[[], object]:
    weight, factor = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    gradient = torch.ones(64, 64)
    offload = sh.offload_activations()

    def run() -> None:
        with offload:
            (weight * factor).backward(gradient)

    return run


PATHS = {
    "a convolution": (_conv_inference, 23),
    "a step of training a convolution": (_conv_training, 47),
    "ten rows of a table": (_gather, 23),
    "a relational layer on 100 edges": (lambda: _relational(is_training=False), 165),
    "a step of training it": (lambda: _relational(is_training=True), 270),
    "a step with one small saved tensor under offload": (_saved_tensor, 27),
}


@pytest.mark.parametrize("path", list(PATHS))
def test_a_small_call_keeps_its_budget(path: str) -> None:
    torch.manual_seed(0)
    make, budget = PATHS[path]
    calls = count_calls(make())
    found = sum(calls.values())
    assert found <= budget, f"{found} calls: {calls.most_common()}"
    assert found > 0.85 * budget, f"the budget of {budget} is too wide for {found} calls"


def test_calls_are_counted() -> None:
    assert count_calls(lambda: sh.settings.kernels)["__get__"] == 1
