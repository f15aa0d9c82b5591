"""`python_text`: the standard library's source as a corpus of bytes, for language models.

The vocabulary is the 256 byte values. Whole files are held out, chosen by a hash of their names, so
what a model is tested on is not the other half of something it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shorthaul.datasets.array_cache import Arrays, cached_arrays
from shorthaul.datasets.standard_library import (
    LibraryFile,
    draw,
    fingerprint,
    library_directory,
    list_library,
)
from shorthaul.errors import DatasetError
from shorthaul.units import parse_bytes

# Raise it whenever the same files would give other arrays than before.
FORMAT = 1

HELD_OUT_SHARE = 0.1

# Shorter files only mark packages, and some of those are equal.
SHORTEST_FILE_BYTES = 100

# The smallest corpus in which both parts hold text.
MINIMUM_BYTES = 10_000

# Between two files; the source of a program has no zero byte of its own.
SEPARATOR = b"\0"


@dataclass(frozen=True, eq=False)
class PythonText:
    """A corpus in two parts, each a row of bytes with a zero byte after every file."""

    train: torch.Tensor  # (bytes,) uint8
    held_out: torch.Tensor  # (bytes,) uint8
    vocabulary: int = 256  # a token is a byte

    def batches(
        self, batch_size: int, length: int, steps: int, *, seed: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """`steps` batches of (tokens, next tokens) from anywhere in `train`: each (batch_size, length) int64.

        >>> for tokens, following in python_text("100 kB").batches(8, 64, steps=1):
        ...     print(tuple(tokens.shape), bool((tokens[:, 1:] == following[:, :-1]).all()))
        (8, 64) True

        The same seed gives the same batches; the global random state is left alone.

        Args:
            batch_size: Rows of a batch.
            length: Tokens of a row.
            steps: Number of batches.
            seed: Decides where rows begin (default 0).
        """
        _require_window(self.train, batch_size, length, "train")
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            starts = torch.randint(
                self.train.numel() - length,
                (batch_size,),
                generator=generator,
                dtype=torch.int64,
                device="cpu",
            )
            yield _cut(self.train, starts, length)

    def held_out_batches(
        self, batch_size: int, length: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The held-out part once, in order, in windows that do not overlap; the last batch may be smaller.

        Args:
            batch_size: Rows of a batch.
            length: Tokens of a row.
        """
        _require_window(self.held_out, batch_size, length, "held_out")
        starts = torch.arange(
            0, self.held_out.numel() - length, length, dtype=torch.int64, device="cpu"
        )
        for part in torch.split(starts, batch_size):
            yield _cut(self.held_out, part, length)

    @staticmethod
    def decode(tokens: torch.Tensor) -> str:
        """Tokens as readable text; bytes that are not UTF-8 become question marks in diamonds."""
        return bytes(tokens.to(torch.uint8).flatten().tolist()).decode(errors="replace")


def python_text(limit_bytes: int | str | None = "4 MB") -> PythonText:
    """The standard library's source text, nine parts to train on and one held out.

    >>> text = python_text("100 kB")
    >>> text.train.numel(), text.held_out.numel(), text.vocabulary
    (90000, 10000, 256)

    `limit_bytes` bounds both parts together; `None` takes the whole library, some nine million bytes.
    """
    limit = None if limit_bytes is None else parse_bytes(limit_bytes)
    if limit is not None and limit < MINIMUM_BYTES:
        raise DatasetError(
            f"limit_bytes must be at least {MINIMUM_BYTES:,} for both parts to hold text, "
            f"got {limit_bytes!r}."
        )
    files = [
        each for each in list_library(library_directory()) if each.size_bytes >= SHORTEST_FILE_BYTES
    ]
    key: dict[str, object] = {"format": FORMAT, "limit": limit, "files": fingerprint(files)}
    arrays = cached_arrays("python_text", key, lambda: _build(files, limit))
    return PythonText(torch.from_numpy(arrays["train"]), torch.from_numpy(arrays["held_out"]))


def _build(files: Sequence[LibraryFile], limit: int | None) -> Arrays:
    held_out = [each for each in files if is_held_out(each.name)]
    train = [each for each in files if not is_held_out(each.name)]
    held_out_limit = None if limit is None else round(limit * HELD_OUT_SHARE)
    train_limit = None if held_out_limit is None or limit is None else limit - held_out_limit
    return {"train": _join(train, train_limit), "held_out": _join(held_out, held_out_limit)}


def is_held_out(module_name: str) -> bool:
    """Whether a module's file belongs to the held-out part, whatever the size of the corpus."""
    return draw(module_name, "held out") < HELD_OUT_SHARE


def _join(files: Sequence[LibraryFile], limit: int | None) -> npt.NDArray[np.uint8]:
    """Files in an order drawn by name, so that a small corpus is not all `asyncio`, cut at `limit`."""
    text = bytearray()
    for file in sorted(files, key=lambda each: draw(each.name, "order")):
        if limit is not None and len(text) >= limit:
            break
        text += file.read() + SEPARATOR
    return np.array(text[:limit], dtype=np.uint8)


def _require_window(tokens: torch.Tensor, batch_size: int, length: int, part: str) -> None:
    if batch_size < 1 or not 1 <= length < tokens.numel():
        raise DatasetError(
            f"expected a batch_size of at least 1 and a length from 1 to {tokens.numel() - 1:,} "
            f"(the {part} part has {tokens.numel():,} bytes), got {batch_size} and {length}."
        )


def _cut(
    tokens: torch.Tensor, starts: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    windows = tokens[
        starts[:, None] + torch.arange(length + 1, dtype=torch.int64, device="cpu")
    ].long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
