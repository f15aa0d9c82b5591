"""What do a step's activations cost outside of a GPU's memory, in time and in what stays of them there?

A stack of transformer layers; all arms compute the same gradients, bit by bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.device_arm import Run, Way, compare_ways, find_device
from benchmarks.measuring.measure import same_bits

PLAIN = "PyTorch, all kept"


def measure(answer: Answer) -> None:
    """A step forward and back; what is offloaded goes to host memory, ours to files."""
    device = find_device()
    width, layers, tokens = (32, 2, 64) if answer.is_quick else (1024, 12, 8 * 1024)
    torch.manual_seed(0)
    model = nn.Sequential(*(_block(width) for _ in range(layers))).to(device)
    x = torch.randn(tokens, width).to(device)
    with tempfile.TemporaryDirectory() as directory:
        ours = sh.offload_activations(directory, minimum_bytes=1024)
        compare_ways(
            answer,
            f"{layers} layers of {width}, {tokens:,} tokens",
            [
                Way(PLAIN, lambda: _step(model, x, nullcontext)),
                Way("PyTorch, save_on_cpu, pinned", lambda: _step(model, x, _save_on_cpu)),
                Way("TRL", lambda: _step(model, x, _trl())),
                Way("torchtune", lambda: _step(model, x, _torchtune())),
                Way("shorthaul, to files", lambda: _step(model, x, lambda: ours)),
            ],
            baseline=PLAIN,
            same=same_bits,
            device=device,
            has_peaks=True,
        )
        ours.close()


def _block(width: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )


def _save_on_cpu() -> AbstractContextManager[object]:
    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def _trl() -> Callable[[], AbstractContextManager[object]]:
    from trl.models.activation_offloading import OffloadActivations

    return OffloadActivations


def _torchtune() -> Callable[[], AbstractContextManager[object]]:
    from torchtune.training import OffloadActivations

    return OffloadActivations


def _step(
    model: nn.Module, x: torch.Tensor, surroundings: Callable[[], AbstractContextManager[object]]
) -> Run:
    def run() -> list[torch.Tensor]:
        model.zero_grad()
        with surroundings():
            out = model(x).square().mean()
        out.backward()
        return [each.grad.clone() for each in model.parameters() if each.grad is not None]

    return run


if __name__ == "__main__":
    answer_question(measure)
