"""Names of millions of nodes, without a Python string for each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import overload

import torch

from shorthaul.errors import GraphError
from shorthaul.graphs.edge_tensors import as_plain


class NodeNames(Sequence[str]):
    """Names one after the other as UTF-8, and where each begins; a name becomes `str` when asked for.

    >>> names = NodeNames.of(["Ada", "Zürich", ""])
    >>> names[1], len(names), names.index("Ada")
    ('Zürich', 3, 0)

    Bytes that are no UTF-8 are shown as replacement characters.

    Args:
        text: (bytes,) uint8.
        offsets: (names + 1,) int64.
    """

    def __init__(self, text: torch.Tensor, offsets: torch.Tensor) -> None:
        if text.dtype is not torch.uint8 or offsets.dtype is not torch.int64 or not len(offsets):
            raise GraphError(
                "names are uint8 text with int64 offsets, one more than there are names; got "
                f"{text.dtype} and {len(offsets):,} of {offsets.dtype}."
            )
        self.text, self.offsets = text, offsets
        self._positions: dict[bytes, int] | None = None

    @classmethod
    def of(cls, names: Sequence[str]) -> NodeNames:
        """The same names, packed."""
        encoded = [name.encode() for name in names]
        lengths = torch.tensor([0, *map(len, encoded)], dtype=torch.int64, device="cpu")
        joined = bytearray(b"".join(encoded))
        text = (
            torch.frombuffer(joined, dtype=torch.uint8)
            if joined
            else torch.empty(0, dtype=torch.uint8, device="cpu")
        )
        return cls(text, lengths.cumsum(0))

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        if not -len(self) <= position < len(self):
            raise IndexError(
                f"there are {len(self):,} names, but number {position:,} was asked for"
            )
        position %= len(self)
        start, stop = as_plain(self.offsets[position : position + 2]).tolist()
        return self._bytes(start, stop).decode(errors="replace")

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """The number of the node with this name; `ValueError` where none has it.

        The first call makes a dictionary of all names, which the others use.

        Args:
            name: What to look for.
            start: The first number to accept (default 0).
            stop: The number after the last one; None (default) for all.
        """
        if self._positions is None:
            text, offsets = self._bytes(0, int(self.text.shape[0])), as_plain(self.offsets).tolist()
            found = [text[one:other] for one, other in itertools.pairwise(offsets)]
            # Backwards, so that of two equal names the first is kept.
            self._positions = {found[n]: n for n in range(len(found) - 1, -1, -1)}
        position = self._positions.get(name.encode())
        if position is None or position < start or (stop is not None and position >= stop):
            raise ValueError(f"no node is called {name!r}")
        return position

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self.index(name) >= 0
        except ValueError:
            return False

    def _bytes(self, start: int, stop: int) -> bytes:
        return bytes(as_plain(self.text[start:stop]).numpy().tobytes())

    def __getstate__(self) -> dict[str, object]:
        return {"text": self.text, "offsets": self.offsets, "_positions": None}

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3])) + (", .." if len(self) > 3 else "")
        return f"NodeNames({len(self):,}: {shown})"
