"""Random numbers and subsets in plain Python, number for number what the generated kernel draws.

It draws from the same streams (`shorthaul/graphs/sampling/random.h`), so it is the kernel's
oracle in tests, and it takes over, with equal results, where there is no compiler.

>>> stream = RandomStream(key=1, owner=2)
>>> [stream.below(6) for _ in range(8)]
[1, 1, 4, 5, 3, 5, 5, 2]
"""

from __future__ import annotations

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

    def next(self) -> int:
        """Uniform on all 64 bits."""
        self._state = (self._state + GOLDEN) & _MASK
        return mix(self._state)

    def fraction(self) -> float:
        """Uniform on the multiples of 2^-53 in [0, 1)."""
        return (self.next() >> 11) * 2.0**-53

    def below(self, bound: int) -> int:
        """Uniform on `range(bound)`, exactly."""
        while True:
            product = self.next() * bound
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
