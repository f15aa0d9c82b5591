"""`digits`: 1,797 handwritten digits of 8 by 8 pixels, from scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from shorthaul.datasets.standard_library import draw
from shorthaul.errors import DatasetError, MissingExtraError

TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False, repr=False)
class Digits:
    """Images with their labels, and which of them are for training and for testing."""

    images: torch.Tensor  # (1797, 1, 8, 8) float32 from 0 to 1
    labels: torch.Tensor  # (1797,) int64 from 0 to 9
    train: torch.Tensor  # positions, ascending; the two parts share none
    test: torch.Tensor  # positions, ascending
    num_classes: int = 10  # one per digit

    def __repr__(self) -> str:
        return f"Digits({len(self.labels):,} images, {self.num_classes} classes)"

    def batches(
        self, batch_size: int, *, seed: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One pass over the training part in an order that the seed decides; the last batch may be smaller.

        >>> images, labels = next(digits().batches(32))
        >>> images.shape, labels.shape
        (torch.Size([32, 1, 8, 8]), torch.Size([32]))

        Args:
            batch_size: Images of a batch.
            seed: Decides the order (default 0).
        """
        if batch_size < 1:
            raise DatasetError(f"batch_size must be at least 1, got {batch_size}.")
        generator = torch.Generator().manual_seed(seed)
        order = self.train[
            torch.randperm(self.train.numel(), generator=generator, dtype=torch.int64, device="cpu")
        ]
        for part in torch.split(order, batch_size):
            yield self.images[part], self.labels[part]


def digits() -> Digits:
    """The digits that come with scikit-learn, an optional package: `pip install 'shorthaul[digits]'`.

    >>> data = digits()
    >>> data.images.shape, len(data.train) + len(data.test)
    (torch.Size([1797, 1, 8, 8]), 1797)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "digits", "shorthaul.datasets.digits()") from error
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32, device="cpu").div(16).unsqueeze(1)
    is_test = torch.tensor(
        [draw(str(number), "digits") < TEST_SHARE for number in range(len(images))],
        dtype=torch.bool,
        device="cpu",
    )
    return Digits(
        images=images,
        labels=torch.tensor(data.target, dtype=torch.int64, device="cpu"),
        train=torch.nonzero(~is_test)[:, 0],
        test=torch.nonzero(is_test)[:, 0],
    )
