"""The digits: scaled, split once and for all, and optional."""

import sys

import pytest
import torch
from torch.nn import functional

from shorthaul.datasets import Digits, digits
from shorthaul.errors import DatasetError, MissingExtraError


@pytest.fixture(scope="module")
def data() -> Digits:
    pytest.importorskip("sklearn", reason="the extra `digits` is not installed")
    return digits()


def test_images_and_labels(data: Digits) -> None:
    assert data.images.shape == (1797, 1, 8, 8)
    assert data.images.dtype == torch.float32
    assert (data.images.min(), data.images.max()) == (0, 1)
    assert data.labels.dtype == torch.int64
    assert data.labels.unique().tolist() == list(range(data.num_classes))


def test_printing_it_shows_sizes(data: Digits) -> None:
    assert repr(data) == "Digits(1,797 images, 10 classes)"


def test_the_split_is_fixed_and_disjoint(data: Digits) -> None:
    assert sorted([*data.train.tolist(), *data.test.tolist()]) == list(range(1797))
    assert torch.equal(data.train, digits().train)
    assert (len(data.train), len(data.test)) == (1417, 380)
    assert data.test[:5].tolist() == [5, 9, 17, 24, 30]
    assert torch.bincount(data.labels[data.test]).min() >= 25


def test_batches_are_one_pass_in_the_seeds_order(data: Digits) -> None:
    labels = [torch.cat([part for _, part in data.batches(100, seed=seed)]) for seed in (1, 1, 2)]
    assert torch.equal(labels[0], labels[1])
    assert not torch.equal(labels[0], labels[2])
    assert torch.equal(labels[0].sort()[0], data.labels[data.train].sort()[0])
    shapes = [tuple(images.shape) for images, _ in data.batches(1000)]
    assert shapes == [(1000, 1, 8, 8), (417, 1, 8, 8)]
    with pytest.raises(DatasetError, match="batch_size must be at least 1, got 0"):
        next(data.batches(0))


def test_a_linear_model_reads_most_of_them(data: Digits, one_thread: None) -> None:
    weight = torch.zeros(64, 10, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.05)
    for epoch in range(5):
        for images, labels in data.batches(64, seed=epoch):
            loss = functional.cross_entropy(images.flatten(1) @ weight, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    guesses = (data.images[data.test].flatten(1) @ weight).argmax(1)
    assert (guesses == data.labels[data.test]).float().mean() > 0.85


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError) as caught:
        digits()
    assert str(caught.value) == (
        "shorthaul.datasets.digits() needs the package `scikit-learn`, which is not installed.\n"
        "  pip install 'shorthaul[digits]'"
    )
