"""Neighbor sampling in plain Python, number for number what the generated kernel samples.

It draws from the same streams (`shorthaul/graphs/sampling/random.h`), so it is the kernel's
oracle in tests, and it takes over, with equal results, where there is no compiler.

>>> stream = RandomStream(key=1, owner=2)
>>> [stream.below(6) for _ in range(8)]
[1, 1, 4, 5, 3, 5, 5, 2]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from shorthaul.graphs.index.indexes import TargetIndex

_MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """A bijection of 64 bits that scatters neighboring inputs."""
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


def count_taken(degree: int, fan_out: int, *, replace: bool) -> int:
    """How many of `degree` neighbors are taken."""
    if fan_out < 0:
        return degree
    return (fan_out if degree else 0) if replace else min(degree, fan_out)


def draw(stream: RandomStream, degree: int, fan_out: int, *, replace: bool) -> list[int]:
    """Which of `degree` neighbors are taken; ascending unless drawn with replacement."""
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
    """The sample's nodes, distinct seeds first, and its hops.

    `OverflowError` where a hop has more edges than the index's dtype can count.
    """
    most = torch.iinfo(index.pointers.dtype).max
    rows = {node: row for row, node in enumerate(dict.fromkeys(seeds))}
    hops: list[DrawnHop] = []
    begin = 0
    for number, fan in enumerate(fan_outs):
        nodes = list(rows)
        hop = DrawnHop(0 if resample else begin, [0], [], [])
        begin = len(nodes)
        hop_key = mix((key + GOLDEN * (number + 1)) & _MASK)
        targets = nodes[hop.first_target :]
        runs_of = list(_find_runs(index, targets, fan))
        taken_in_all = sum(
            count_taken(stop - start, fan_out, replace=replace)
            for runs in runs_of
            for start, stop, fan_out in runs
        )
        if taken_in_all > most:
            raise OverflowError(taken_in_all)
        for node, runs in zip(targets, runs_of, strict=True):
            stream = RandomStream(hop_key, node)
            for start, stop, fan_out in runs:
                taken = draw(stream, stop - start, fan_out, replace=replace)
                hop.positions.extend(start + each for each in taken)
            hop.pointers.append(len(hop.positions))
        taken_positions = torch.tensor(hop.positions, dtype=index.pointers.dtype, device="cpu")
        for source in index.sources[taken_positions].tolist():
            hop.sources.append(rows.setdefault(source, len(rows)))
        hops.append(hop)
    return list(rows), hops


def _find_runs(
    index: TargetIndex, nodes: Sequence[int], fan: Sequence[int]
) -> Iterator[list[tuple[int, int, int]]]:
    """For each node, the parts of its row that have a fan-out of their own: start, stop, fan-out.

    Whatever is read of the index is read once for all nodes: it may lie on disk.
    """
    ids = torch.tensor(nodes, dtype=index.pointers.dtype, device="cpu")
    both = index.pointers[torch.stack([ids, ids + 1], dim=1).flatten()].view(-1, 2)
    rows = [(start, stop) for start, stop in both.tolist()]
    if len(fan) == 1:
        yield from ([(start, stop, fan[0])] for start, stop in rows)
        return
    positions = [at for start, stop in rows for at in range(start, stop)]
    relations = iter(
        index.relations[torch.tensor(positions, dtype=ids.dtype, device="cpu")].tolist()
    )
    for start, stop in rows:
        runs = []
        for relation, members in itertools.groupby(itertools.islice(relations, stop - start)):
            count = len(list(members))
            runs.append((start, start + count, fan[relation]))
            start += count
        yield runs
