"""Train a small CNN on handwritten digits, once with PyTorch's convolutions and once with shorthaul's.

Both start from the same weights and see the same batches; they end with the same accuracy.

    python examples/cnn/train_digits_conv.py
"""

import argparse
import copy
import time

import rich
import torch
from torch import nn

import shorthaul as sh
from shorthaul.datasets import digits


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


def train(model: nn.Module, epochs: int) -> float:
    """Train in place; returns the seconds that it took."""
    data = digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    started = time.perf_counter()
    for epoch in range(epochs):
        for images, labels in data.batches(64, seed=epoch):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return time.perf_counter() - started


def accuracy(model: nn.Module) -> float:
    """Share of the test images that the model names rightly."""
    data = digits()
    model.eval()
    with torch.no_grad():
        named = model(data.images[data.test]).argmax(dim=1)
    model.train()
    return float((named == data.labels[data.test]).float().mean())


def main(epochs: int = 6) -> tuple[float, float]:
    """Accuracy with PyTorch's convolutions, and with shorthaul's."""
    plain = make_model()
    replaced = copy.deepcopy(plain)
    report = sh.replace_convs(replaced, policy="always", fold=True)
    accuracies = []
    for name, model in (("PyTorch", plain), ("shorthaul", replaced)):
        seconds = train(model, epochs)
        accuracies.append(accuracy(model))
        print(f"{name:>10}: {accuracies[-1]:.1%} of the test digits right, after {seconds:.1f} s")
    rich.print(report.table())
    return accuracies[0], accuracies[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    main(parser.parse_args().epochs)
