"""Neighbour sampling in plain Python, number for number what the generated kernel samples.

It draws from the same streams (`jit/include/shorthaul/sampling/random.h`), so it is the kernel's
oracle in tests, and it takes over where there is no compiler, with equal results.

>>> stream = RandomStream(key=1, owner=2)
>>> [stream.below(6) for _ in range(8)]
[1, 1, 4, 5, 3, 5, 5, 2]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from shorthaul.graphs.indexes import TargetIndex

_MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """A bijection of 64 bits that scatters neighbouring inputs."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class RandomStream:
    """The random numbers of one target node in one hop."""

    def __init__(self, key: int, owner: int) -> None:
        self._state = mix(key ^ mix((owner + GOLDEN) & _MASK))

    def below(self, bound: int) -> int:
        """Uniform on `range(bound)`, exactly."""
        while True:
            self._state = (self._state + GOLDEN) & _MASK
            product = mix(self._state) * bound
            if product & _MASK >= 2**64 % bound:
                return product >> 64


def draw(stream: RandomStream, degree: int, fan_out: int, *, replace: bool) -> list[int]:
    """Which of `degree` neighbours are taken; ascending unless drawn with replacement."""
    if fan_out < 0 or (not replace and degree <= fan_out):
        return list(range(degree))
    if replace:
        return [stream.below(degree) for _ in range(fan_out if degree else 0)]
    chosen: set[int] = set()  # Floyd: every subset of this size is equally likely
    for last in range(degree - fan_out, degree):
        at = stream.below(last + 1)
        chosen.add(last if at in chosen else at)
    return sorted(chosen)


@dataclass
class DrawnHop:
    """The edges of one hop, for targets in the order of the sample's list of nodes."""

    first_target: int
    pointers: list[int]
    sources: list[int]  # positions in the list of nodes
    positions: list[int]  # positions in the graph's index


def sample_plainly(
    index: TargetIndex,
    seeds: Sequence[int],
    fan_outs: Sequence[Sequence[int]],
    key: int,
    *,
    replace: bool,
    resample: bool,
) -> tuple[list[int], list[DrawnHop]]:
    """The sample's nodes, distinct seeds first, and its hops."""
    rows = {node: row for row, node in enumerate(dict.fromkeys(seeds))}
    hops: list[DrawnHop] = []
    begin = 0
    for number, fan in enumerate(fan_outs):
        nodes = list(rows)
        hop = DrawnHop(0 if resample else begin, [0], [], [])
        begin = len(nodes)
        hop_key = mix((key + GOLDEN * (number + 1)) & _MASK)
        for node in nodes[hop.first_target :]:
            stream = RandomStream(hop_key, node)
            for start, stop, fan_out in _runs(index, node, fan):
                taken = draw(stream, stop - start, fan_out, replace=replace)
                hop.positions.extend(start + each for each in taken)
            hop.pointers.append(len(hop.positions))
        taken_positions = torch.tensor(hop.positions, dtype=index.pointers.dtype)
        for source in index.sources[taken_positions].tolist():
            hop.sources.append(rows.setdefault(source, len(rows)))
        hops.append(hop)
    return list(rows), hops


def _runs(index: TargetIndex, node: int, fan: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The parts of a node's row that have a fan-out of their own: start, stop, fan-out."""
    start, stop = index.pointers[torch.tensor([node, node + 1])].tolist()
    if len(fan) == 1:
        yield start, stop, fan[0]
        return
    relations = index.relations[torch.arange(start, stop)].tolist()
    for relation in sorted(set(relations)):
        first = start + relations.index(relation)
        yield first, first + relations.count(relation), fan[relation]
