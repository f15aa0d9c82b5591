"""Samples drawn by the Triton kernels in their interpreter, against those of the CPU.

Run as a program with a count and a seed, it prints a line of JSON for each drawn case: what it was, and
what differs.
"""

from __future__ import annotations

import json
import random
import sys

import torch
import triton
import triton.language as tl

from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.graphs.sampling.device.drawing import draw_sample
from shorthaul.graphs.sampling.device.hops import DeviceTopology
from shorthaul.graphs.sampling.device.triton_draw import _below, _start_streams
from shorthaul.graphs.sampling.plain import RandomStream
from shorthaul.graphs.sampling.streams import as_signed, choose_key
from tests.graphs.sampled_graphs import random_graph, same_samples, star

# Bounds of which every second product, or every tenth, is drawn anew.
HARD_BOUNDS = (2**63 - 1, 2**62 + 1, 3 * 2**61 + 5, 2**60 + 1, 1, 2, 7, 1000)


@triton.jit
def below_kernel(keys, nodes, bounds, numbers, BLOCK: tl.constexpr, STEPS: tl.constexpr):  # noqa: N803
    lane = tl.arange(0, BLOCK)
    mask = lane < BLOCK
    bound = tl.load(bounds + lane)
    state = _start_streams(keys, 0, nodes, lane, mask)
    for step in range(STEPS):
        state, found = _below(state, bound, mask)
        tl.store(numbers + lane * STEPS + step, found)


def compare_numbers(draw: random.Random) -> str:
    """Numbers below bounds that are hard to be fair to; what differs from plain Python's."""
    key, steps = draw.getrandbits(64), 20
    nodes = torch.tensor([draw.randrange(2**31) for _ in HARD_BOUNDS])
    found = torch.empty(len(HARD_BOUNDS), steps, dtype=torch.int64)
    keys, bounds = torch.tensor([as_signed(key)]), torch.tensor(HARD_BOUNDS)
    below_kernel[(1,)](keys, nodes, bounds, found, BLOCK=len(HARD_BOUNDS), STEPS=steps)
    for node, bound, numbers in zip(nodes.tolist(), HARD_BOUNDS, found.tolist(), strict=True):
        stream = RandomStream(key, node)
        expected = [stream.below(bound) for _ in range(steps)]
        if numbers != expected:
            return f"below {bound:,}: {numbers} and {expected}"
    return ""


def compare_samples(graph: RelationalGraph, seeds: torch.Tensor, number: int, **how: object) -> str:
    """One sample, drawn by both; what differs."""
    sampler = NeighborSampler(graph, **how)
    expected = sampler.sample(seeds, number=number)
    index = graph.by_target()
    got = draw_sample(
        DeviceTopology(index.pointers, index.sources),
        index,
        seeds.to(graph.index_dtype),
        [each for (each,) in sampler.fan_outs],
        choose_key(sampler.seed, number),
        number,
        replace=sampler.replace,
        resample=sampler.resample,
    )
    return same_samples(got, expected)


def draw_case(draw: random.Random) -> tuple[str, str]:
    """A graph, seeds and fan-outs of all kinds."""
    dtype = draw.choice([torch.int32, torch.int64])
    if draw.random() < 0.2:
        graph = star([draw.choice([0, 1, 5, 63, 64, 65, 200]) for _ in range(5)])
    else:
        nodes = draw.randint(1, 80)
        graph = random_graph(
            nodes, draw.choice([0, 50, 200, 900, 900]), seed=draw.getrandbits(30), dtype=dtype
        )
    count = draw.choice([0, 1, 7, 7, 40, 150])
    seeds = torch.tensor([draw.randrange(graph.num_nodes) for _ in range(count)], dtype=torch.int64)
    fans = [
        draw.choice([-1, 0, 1, 2, 3, 10, 16, 33, 100])
        for _ in range(draw.choice([0, 1, 2, 2, 3, 3]))
    ]
    how = {
        "fan_outs": fans,
        "replace": draw.random() < 0.4,
        "resample": draw.random() < 0.5,
        "seed": draw.getrandbits(64),
    }
    name = f"{graph!r} of {graph.index_dtype}, {count} seeds, {how}"
    return name, compare_samples(graph, seeds, draw.randrange(2**40), **how)


def main(count: int, seed: int) -> None:
    draw = random.Random(seed)
    print(json.dumps({"name": "numbers below hard bounds", "problem": compare_numbers(draw)}))
    for _ in range(count):
        name, problem = draw_case(draw)
        print(json.dumps({"name": name, "problem": problem}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
