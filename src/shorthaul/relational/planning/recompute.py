"""What to keep from the forward for the backward pass, and what to compute again, within a budget.

A plan keeps every forward value that its backward kernels read. With a budget of bytes it keeps those
that are dearest to make again and runs the kernels of the others a second time, at the start of the
backward pass, from the layer's inputs and what was kept. They are the same kernels on the same numbers
(dropout's masks come from the same seed), so gradients are the same to the last bit::

    saved for backward: value, exp, sum                # 41 MiB, 10 MiB, 10 MiB
    -> with a budget of 24 MiB
    saved for backward: exp, sum
    computed again: value                              # one product

Everything can be computed again from the inputs, which the caller holds anyway: a plan fits any budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

from shorthaul.relational.lowering.kernels import Plan, operands_of, results_of
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.planning.estimate import estimate

MOST_CHOICES = 10  # the largest values; there are 2 ** 10 ways to choose among them
FLOPS_PER_BYTE = 4  # a kernel takes as long to do this many operations as to bring a byte in


def keep_within(plan: Plan, sizes: GraphSizes, value_bytes: int, budget_bytes: int) -> Plan:
    """`plan` with at most `budget_bytes` saved between forward and backward on such a graph."""
    saved = {
        name: sizes[plan.program[name].space] * plan.program[name].size * value_bytes
        for name in plan.saved
    }
    if sum(saved.values()) <= budget_bytes:
        return plan
    work = [
        each.gathered_bytes + each.flops // FLOPS_PER_BYTE
        for each in estimate(plan, sizes, value_bytes=value_bytes).of("forward").kernels
    ]
    best: tuple[int, int, tuple[str, ...]] | None = None
    for dropped in _choices(saved):
        kept_bytes = sum(count for name, count in saved.items() if name not in dropped)
        if kept_bytes > budget_bytes:
            continue
        again = find_again(plan, dropped)
        cost = sum(work[number] for number in again)
        if best is None or (cost, kept_bytes) < best[:2]:
            best = cost, kept_bytes, dropped
    assert best is not None  # dropping everything leaves nothing to keep
    kept = tuple(name for name in plan.saved if name not in best[2])
    return replace(plan, saved=kept, again=find_again(plan, best[2]))


def _choices(saved: dict[str, int]) -> list[tuple[str, ...]]:
    """Ways to drop values: all ways among the largest, and everything."""
    largest = sorted(saved, key=saved.__getitem__, reverse=True)[:MOST_CHOICES]
    some = itertools.chain.from_iterable(
        itertools.combinations(largest, count) for count in range(1, len(largest) + 1)
    )
    return [*some, tuple(saved)]


def find_again(plan: Plan, dropped: Collection[str]) -> tuple[int, ...]:
    """The forward kernels to run once more so that `dropped` values are there, in their order."""
    kept = set(plan.saved) - set(dropped)
    wanted, found = set(dropped), []
    for number in reversed(range(len(plan.forward))):
        work = plan.forward[number]
        if wanted.isdisjoint(results_of(work)):
            continue
        found.append(number)
        wanted |= operands_of(work, plan.program, set(plan.stored)) - kept
    return tuple(reversed(found))
