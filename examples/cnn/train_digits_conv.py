"""Train a small CNN on handwritten digits, once with PyTorch's convolutions and once by what is faster.

Both start from the same weights and see the same batches; they end with the same accuracy. They take
turns, epoch by epoch, so that a busy moment of the machine falls on both. On layers as small as these
there may be nothing to gain: what was measured is printed either way.

    python examples/cnn/train_digits_conv.py
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import rich
import torch
from torch import nn

import shorthaul as sh
from shorthaul.datasets import digits

BATCH = 64
TEST_PASSES = 9


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False),
        nn.Conv2d(32, 64, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    ).to(memory_format=torch.channels_last)


class Training:
    """A model, its optimizer, and the seconds that its epochs and its tests took."""

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name, self.model = name, model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        self.epoch_seconds: list[float] = []
        self.test_seconds: list[float] = []

    def train_epoch(self, epoch: int) -> None:
        """One pass over the training digits."""
        started = time.perf_counter()
        for images, labels in digits().batches(BATCH, seed=epoch):
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.epoch_seconds.append(time.perf_counter() - started)

    def test(self) -> float:
        """Share of the test images that the model names rightly."""
        data = digits()
        self.model.eval()
        started = time.perf_counter()
        with torch.no_grad():
            named = self.model(data.images[data.test]).argmax(dim=1)
        self.test_seconds.append(time.perf_counter() - started)
        self.model.train()
        return float((named == data.labels[data.test]).float().mean())


def main(epochs: int = 6) -> tuple[float, float]:
    """Accuracy with PyTorch's convolutions, and with what is faster."""
    data = digits()
    plain = Training("PyTorch", make_model())
    ours = Training("shorthaul", copy.deepcopy(plain.model))
    report = sh.replace_convs(ours.model, policy="auto", fold=True)
    # The compiler is waited for, each layer is measured, and so is the model as a whole.
    images, _ = next(data.batches(BATCH))
    sh.warm_up(ours.model, images)
    sh.warm_up(ours.model, data.images[data.test], is_training=False)

    for epoch in range(epochs):
        for each in (plain, ours):
            each.train_epoch(epoch)
    for _ in range(TEST_PASSES):
        accuracies = [each.test() for each in (plain, ours)]

    for each, accuracy in zip((plain, ours), accuracies, strict=True):
        epoch_seconds = statistics.median(each.epoch_seconds)
        test_seconds = statistics.median(each.test_seconds)
        print(
            f"{each.name:>10}: {accuracy:.1%} of the test digits right; "
            f"an epoch {epoch_seconds:.2f} s, a test {test_seconds * 1000:.1f} ms"
        )
    training = statistics.median(plain.epoch_seconds) / statistics.median(ours.epoch_seconds)
    inference = statistics.median(plain.test_seconds) / statistics.median(ours.test_seconds)
    print(
        f"Against PyTorch: training {training:.2f} times as fast, inference {inference:.2f} times."
    )
    rich.print(report.table())
    return accuracies[0], accuracies[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    main(parser.parse_args().epochs)
