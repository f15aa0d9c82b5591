"""Collectives on bytes, by one process group; for a process alone they hand back what they are given.

>>> from shorthaul.distributed.ranks.world import World
>>> wire = Wire(World(0, 1), None, None)
>>> wire.exchange(torch.arange(3), [3], [3]), wire.gather_texts("x")
(tensor([0, 1, 2]), ['x'])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from shorthaul.distributed.ranks.faults import FaultFinder
from shorthaul.distributed.ranks.world import World

# What gloo's errors have in common: its files' names, and what it says of a group that was given up.
_OF_NETWORK = ("gloo", "connection", "timed out", "timeout", "socket", "broken pipe", "abort")


def is_of_network(error: RuntimeError) -> bool:
    """Whether a collective failed because of others: no memory, say, is this rank's own trouble.

    >>> is_of_network(RuntimeError("[gloo/transport/tcp/pair.cc:544] Connection closed by peer"))
    True
    >>> is_of_network(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    False
    """
    said = str(error).lower()
    return isinstance(error, dist.DistError) or any(each in said for each in _OF_NETWORK)


class Wire:
    """What ranks send each other; a collective that fails becomes an error that names who is to blame."""

    def __init__(
        self, world: World, group: dist.ProcessGroup | None, faults: FaultFinder | None
    ) -> None:
        self.world, self.group, self.faults = world, group, faults
        self.where = ""  # what is being exchanged, for errors
        self.is_agreed = False  # whether the error that is raised now is raised on every rank

    def exchange(
        self, send: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> torch.Tensor:
        """Rows for each rank in order, and those that each rank sent here, in order.

        `send` has any number of dimensions; counts are of its first.
        """
        if self.group is None:
            return send
        received = send.new_empty((sum(receive_counts), *send.shape[1:]))
        width = send.shape[1:].numel()
        given, taken = send.contiguous().view(-1), received.view(-1)
        given_sizes = [each * width for each in send_counts]
        taken_sizes = [each * width for each in receive_counts]
        try:
            dist.all_to_all_single(taken, given, taken_sizes, given_sizes, group=self.group)
        except RuntimeError as error:
            if self.faults is None or not is_of_network(error):
                raise
            raise self.faults.explain(error, self.where) from error
        return received

    def gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Equally many numbers of every rank."""
        ranks = self.world.ranks
        mine = torch.tensor([list(numbers)] * ranks, dtype=torch.int64, device="cpu")
        found: list[list[int]] = self.exchange(mine, [1] * ranks, [1] * ranks).tolist()
        return found

    def gather_bytes(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """A row of bytes of every rank, each as long as it is."""
        sizes = [size for (size,) in self.gather_numbers([len(mine)])]
        ranks = self.world.ranks
        together = self.exchange(mine.repeat(ranks), [len(mine)] * ranks, sizes)
        return list(torch.split(together, sizes))

    def gather_texts(self, text: str) -> list[str]:
        """A text of every rank."""
        data = torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
        return [bytes(each.tolist()).decode() for each in self.gather_bytes(data)]
