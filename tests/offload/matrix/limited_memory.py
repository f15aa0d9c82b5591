"""Trains one step of a deep chain: `python -m tests.offload.matrix.limited_memory keep|offload`.

The chain saves 48 tensors of 16 MiB. It is run in a process of its own, under a limit on memory.
"""

from __future__ import annotations

import contextlib
import sys

import torch

import shorthaul as sh

LAYERS, NUMBERS = 48, 4 * 2**20
SAVED_BYTES = LAYERS * NUMBERS * 4
BUDGET_BYTES = 128 * 2**20


def train(arm: str, directory: str) -> str:
    """The sum of a gradient, so that two arms can be compared."""
    torch.set_num_threads(1)
    x = torch.linspace(-1, 1, NUMBERS, requires_grad=True)
    offload = (
        sh.offload_activations(directory, budget=BUDGET_BYTES, policy="all")
        if arm == "offload"
        else contextlib.nullcontext()
    )
    with offload:
        h = x * 2
        for _ in range(LAYERS):
            h = h.sin()
        h.sum().backward()
    assert x.grad is not None
    return f"{x.grad.double().sum().item():.17g}"


if __name__ == "__main__":
    print(train(sys.argv[1], sys.argv[2]))
