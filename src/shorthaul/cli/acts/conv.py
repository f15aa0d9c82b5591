"""The act of `conv`: a small CNN trained on digits, with PyTorch's convolutions and with ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.stage import Outcome, Stage
from shorthaul.cli.acts.training import Training, compare_trainings, train
from shorthaul.conv import replace_convs
from shorthaul.datasets import digits

# Sums are added up in another order, so losses agree closely and not to the last bit.
LOSS_TOLERANCE = 1e-3


def make_network() -> nn.Module:
    """Two convolutions and a head."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )


def show_conv(stage: Stage) -> Outcome:
    """Train both ways from the same seed; losses and accuracy must agree."""
    data = digits()
    epochs = 1 if stage.is_quick else 4

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for epoch in range(epochs):
            yield from data.batches(64, seed=epoch)

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            guess = network(data.images[data.test]).argmax(1)
        return float((guess == data.labels[data.test]).float().mean())

    def run(name: str, network: nn.Module) -> tuple[Training, float]:
        trained = train(name, network, batches(), _step, stage.say, learning_rate=3e-3)
        share = accuracy(network)
        named = replace(trained, name=f"{name}: {share:.1%} right", extra={"accuracy": share})
        return named, share

    stage.say("compiling kernels, once")
    for is_replaced in (False, True):  # both start warm: neither pays for its first call
        network = make_network()
        if is_replaced:
            replace_convs(network, policy="always")
        _step(network, next(batches()))
    plain, plain_share = run("PyTorch's", make_network())
    network = make_network()
    replace_convs(network, policy="always")
    ours, our_share = run("window order", network)
    differences = [abs(a - b) for a, b in zip(plain.losses, ours.losses, strict=True)]
    holds = differences[0] < LOSS_TOLERANCE and abs(plain_share - our_share) < 0.02
    return compare_trainings(plain, ours, holds=holds)


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
