"""A CNN, each convolution computed by what is faster here; trained, and run for inference in bfloat16."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train
from shorthaul.conv import replace_convs, warm_up
from shorthaul.meter import meter

BATCH, SIDE, CLASSES = 16, 48, 10
WARM_UPS = 2
_BATCHES_OF_A_TURN = 5  # of inference: one alone is too short to be timed


def make_network() -> nn.Module:
    """Five convolutions and a head."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64), (64, 96), (96, 96)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, CLASSES))


def play(role: str, *, is_quick: bool, cue: Cue) -> Run:
    """Train with PyTorch's convolutions, or with the faster ones."""
    steps = WARM_UPS + (4 if is_quick else 24)
    images = _make_images(torch.float32)
    labels = torch.arange(BATCH, dtype=torch.int64, device="cpu") % CLASSES
    network = make_network()
    what, ready_seconds = _make_ready(role, network, images, cue)
    turns = [[(images, labels)]] * steps
    run = train(role, what, network, turns, _step, cue, warm_ups=WARM_UPS)
    return replace(run, first_seconds=run.first_seconds + ready_seconds)


def infer(role: str, *, is_quick: bool, cue: Cue) -> Run:
    """Forward alone, in bfloat16; the outputs are what is compared."""
    network = make_network().eval().bfloat16()
    images = _make_images(torch.bfloat16)
    what, first_seconds = _make_ready(role, network, images, cue)
    step_seconds = []
    with meter() as measured, torch.inference_mode():
        began = time.perf_counter()
        answers = network(images)
        first_seconds += time.perf_counter() - began
        for turn in range(4 if is_quick else 16):
            cue.wait()
            began = time.perf_counter()
            for _ in range(_BATCHES_OF_A_TURN):
                answers = network(images)
            step_seconds.append((time.perf_counter() - began) / _BATCHES_OF_A_TURN)
            cue.say(f"batch {(turn + 1) * _BATCHES_OF_A_TURN}")
    return Run(
        role,
        what,
        tuple(answers.float().flatten().tolist()),
        first_seconds=first_seconds,
        step_seconds=tuple(step_seconds),
        extra={"meter": measured.to_dict()},
    )


def _make_images(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(1)
    return torch.randn(BATCH, 3, SIDE, SIDE, generator=generator, dtype=dtype, device="cpu")


def _make_ready(role: str, network: nn.Module, images: torch.Tensor, cue: Cue) -> tuple[str, float]:
    """What computes the convolutions, and how long it took to choose and to compile that."""
    if role == "plain":
        return "PyTorch's convolutions", 0.0
    cue.say("choosing and compiling kernels, once")
    began = time.perf_counter()
    replace_convs(network, policy="auto")
    report = warm_up(network, images, is_quiet=True)
    told = "PyTorch's own, found to be faster as a whole here"
    what = told if report.is_reverted else "each convolution by what is faster here"
    return what, time.perf_counter() - began


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
