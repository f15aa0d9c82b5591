"""Who owns which node: a few offsets, because nodes are numbered so that a part's are neighbors.

>>> book = PartitionBook({"author": (0, 2, 3), "paper": (0, 1, 4)})
>>> book.parts, book.owners("paper", torch.tensor([0, 1, 3])).tolist(), book.rows("paper", 1)
(2, [0, 1, 1], range(1, 4))
>>> book.merged(1).rows("paper", 0)
range(0, 4)

Ids count within a node type. A lookup is a binary search among `parts + 1` offsets: there is no
table with an entry for each node.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from shorthaul.errors import RankSetupError, RowArgumentError


@dataclass(frozen=True)
class PartitionBook:
    """Where each part's nodes begin, for each node type."""

    offsets: Mapping[str, tuple[int, ...]]  # parts + 1 for each type, ascending from 0

    @functools.cached_property
    def parts(self) -> int:
        """How many there are."""
        return len(next(iter(self.offsets.values()))) - 1

    @property
    def node_types(self) -> tuple[str, ...]:
        """In the order of the graph."""
        return tuple(self.offsets)

    def count(self, node_type: str) -> int:
        """Nodes of one type."""
        return self._of(node_type)[-1]

    @property
    def nodes(self) -> int:
        """Of all types."""
        return sum(each[-1] for each in self.offsets.values())

    def rows(self, node_type: str, part: int) -> range:
        """The ids of one type that a part owns.

        Args:
            node_type: The type.
            part: The part.
        """
        offsets = self._of(node_type)
        return range(offsets[part], offsets[part + 1])

    def owners(self, node_type: str, ids: torch.Tensor) -> torch.Tensor:
        """The part of each id, int64.

        Args:
            node_type: The type.
            ids: Those of nodes, within their type.
        """
        return torch.bucketize(ids.long(), self._inner_offsets(node_type), right=True)

    @functools.cached_property
    def starts(self) -> dict[str, int]:
        """Where the global ids of each type begin: types come one after the other."""
        counts = itertools.accumulate((each[-1] for each in self.offsets.values()), initial=0)
        return dict(zip(self.offsets, counts, strict=False))

    def global_rows(self, part: int) -> list[range]:
        """The global ids that a part owns: one range for each node type."""
        found = []
        for name, start in self.starts.items():
            rows = self.rows(name, part)
            found.append(range(start + rows.start, start + rows.stop))
        return found

    def owners_of_nodes(self, nodes: torch.Tensor) -> torch.Tensor:
        """The part of each node by its global id."""
        wide = nodes.long()
        owners = torch.empty_like(wide)
        for name, start in self.starts.items():
            is_own = (wide >= start) & (wide < start + self.count(name))
            owners[is_own] = self.owners(name, wide[is_own] - start)
        return owners

    def merged(self, ranks: int) -> PartitionBook:
        """The book of fewer parts, each made of neighbors: what `ranks` ranks own."""
        if not 1 <= ranks <= self.parts:
            raise RankSetupError(
                f"{self.parts} parts cannot be owned by {ranks} ranks: each rank owns one or more.\n"
                f"  Start {self.parts} ranks or fewer, or cut the graph again with --parts {ranks}."
            )
        ends = self.parts_of_ranks(ranks)
        return PartitionBook(
            {name: tuple(each[end] for end in ends) for name, each in self.offsets.items()}
        )

    def parts_of_ranks(self, ranks: int) -> list[int]:
        """Where each rank's parts begin, and at last the number of parts."""
        return [self.parts * rank // ranks for rank in range(ranks + 1)]

    def _of(self, node_type: str) -> tuple[int, ...]:
        if node_type not in self.offsets:
            raise RowArgumentError(
                "node_type", f"one of {', '.join(self.offsets)}", repr(node_type)
            )
        return self.offsets[node_type]

    @functools.cache  # noqa: B019  (a book lives as long as its parts)
    def _inner_offsets(self, node_type: str) -> torch.Tensor:
        return torch.tensor(self._of(node_type)[1:-1], dtype=torch.int64, device="cpu")

    def __hash__(self) -> int:
        return hash(tuple(self.offsets.items()))
