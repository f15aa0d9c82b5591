"""A CNN, each convolution computed by what is faster here; trained, and then asked in bfloat16."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train
from shorthaul.conv import replace_convs, warm_up
from shorthaul.meter import meter

BATCH, SIDE, CLASSES = 16, 48, 10


def make_network() -> nn.Module:
    """Five convolutions and a head."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64), (64, 96), (96, 96)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, CLASSES))


def play(role: str, *, is_quick: bool, say: Callable[[str], None]) -> Run:
    """Train, or only ask in bfloat16, with PyTorch's convolutions or with the faster ones."""
    steps = 2 + (2 if is_quick else 8)
    generator = torch.Generator(device="cpu").manual_seed(1)
    images = torch.randn(
        BATCH, 3, SIDE, SIDE, generator=generator, dtype=torch.float32, device="cpu"
    )
    labels = torch.arange(BATCH, dtype=torch.int64, device="cpu") % CLASSES
    network = make_network()
    what, ready_seconds = _make_ready(role, network, images, say)
    run = train(role, what, network, [(images, labels)] * steps, _step, say, warm_ups=2)
    return replace(run, first_seconds=run.first_seconds + ready_seconds)


def ask(role: str, *, is_quick: bool, say: Callable[[str], None]) -> Run:
    """Forward alone, in bfloat16; the outputs are what is compared."""
    network = make_network().eval().bfloat16()
    generator = torch.Generator(device="cpu").manual_seed(1)
    images = torch.randn(
        BATCH, 3, SIDE, SIDE, generator=generator, dtype=torch.bfloat16, device="cpu"
    )
    what, ready_seconds = _make_ready(role, network, images, say)
    times: list[float] = []
    with meter() as measured, torch.inference_mode():
        for number in range(2 + (3 if is_quick else 10)):
            began = time.perf_counter()
            answers = network(images)
            times.append(time.perf_counter() - began)
            say(f"batch {number + 1}")
    values = tuple(answers.float().flatten().tolist())
    run = Run(
        role, what, values, first_seconds=ready_seconds + sum(times[:2]), seconds=sum(times[2:])
    )
    extra = {"steps": len(times) - 2, "meter": measured.to_dict()}
    return replace(run, extra=extra)


def _make_ready(
    role: str, network: nn.Module, images: torch.Tensor, say: Callable[[str], None]
) -> tuple[str, float]:
    """What computes the convolutions, and how long it took to choose and to compile that."""
    if role == "plain":
        return "PyTorch's convolutions", 0.0
    say("choosing and compiling kernels, once")
    began = time.perf_counter()
    replace_convs(network)
    report = warm_up(network, images, is_quiet=True)
    told = "as a whole PyTorch's own, which is faster here"
    what = told if report.is_reverted else "each by what is faster here"
    return what, time.perf_counter() - began


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
