"""One model as it is, and the same with replaced convolutions and warmed up, in a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

# isort: split
if str(Path(__file__).parents[2]) not in sys.path:  # served by `arm_server.py`, from its own folder
    sys.path.append(str(Path(__file__).parents[2]))
import shorthaul as sh
from benchmarks.arms.first_minute_models import MODELS


def _make(name: str, *, is_training: bool) -> nn.Module:
    """The model, drawn so that values keep their size: else any two arms would agree."""
    torch.manual_seed(0)
    model = MODELS[name]()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model.train(is_training)


def _run(model: nn.Module, image: Tensor, *, is_training: bool) -> Callable[[], Tensor]:
    """Inference, or a step of training without its optimizer; the same random numbers at each call."""

    def run() -> Tensor:
        torch.manual_seed(0)
        model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(is_training):
            output: Tensor = model(image)
            if is_training:
                output.square().mean().backward()
        return output.detach()

    return run


def make_eager(model: str, is_training: bool, size: int) -> Callable[[], Tensor]:
    """PyTorch's own."""
    image = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    return _run(_make(model, is_training=is_training), image, is_training=is_training)


def make_ours(model: str, is_training: bool, size: int) -> Callable[[], Tensor]:
    """As its first user would have it: replaced where that was measured to be faster, and looked at as a whole."""
    image = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    made = _make(model, is_training=is_training)
    sh.replace_convs(made)
    sh.warm_up(made, image, is_training=is_training, is_quiet=True)
    return _run(made, image, is_training=is_training)


ARMS = {"PyTorch eager": make_eager, "shorthaul, warmed up": make_ours}
