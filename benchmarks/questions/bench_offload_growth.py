"""Does offloading cost what it moves, or what the model and the run are large?

A chain of operators saves sixteen tensors, all of which leave and come back, beside the same chain that
keeps them. Three things grow, one at a time: the bytes of the tensors; the modules around them that save
nothing; and the steps that the same context has behind it. `added` is what a step takes beyond keeping.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_bits

SAVED = 16
KEEP, OFFLOAD = "keep everything", "offload everything"


class Chain(nn.Module):
    """Operators that save what they are given, with modules in between that save nothing."""

    def __init__(self, modules: int) -> None:
        super().__init__()
        self.between = nn.ModuleList(
            nn.Sequential(*(nn.Identity() for _ in range(modules // SAVED))) for _ in range(SAVED)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last of a chain of sines."""
        for modules in self.between:
            x = torch.sin(modules(x))
        return x


def measure_growth(
    answer: Answer, case: str, tensor_bytes: int, modules: int = 0, steps_before: int = 2
) -> None:
    model = Chain(modules)
    x = torch.linspace(-1, 1, tensor_bytes // 4).requires_grad_()
    offload = sh.offload_activations(policy="all", minimum_bytes="64KiB")

    def under(context: contextlib.AbstractContextManager[object]) -> Arm:
        def step() -> torch.Tensor:
            with context:
                # The first tensor is the user's own, so that sixteen others leave.
                return torch.autograd.grad(model(x * 1.0).sum(), x)[0]

        return Arm(OFFLOAD if context is offload else KEEP, step)

    arms = [under(contextlib.nullcontext()), under(offload)]
    for _ in range(steps_before):
        arms[1].run()
    measured = answer.compare(case, arms, baseline=KEEP, same=same_bits)
    before = offload.report().counts.written_bytes
    arms[1].run()
    written_bytes = offload.report().counts.written_bytes - before
    for row, each in zip(answer.rows[-2:], measured, strict=True):
        figures = row["figures"]
        figures["added_seconds"] = each.wall_seconds.median - measured[0].wall_seconds.median
        figures["added_cpu_seconds"] = each.cpu_seconds.median - measured[0].cpu_seconds.median
        figures["written_bytes"] = written_bytes if each.arm == OFFLOAD else 0
    offload.close()


def measure(answer: Answer) -> None:
    torch.set_num_threads(1)
    small = 2**18 if answer.is_quick else 2**21
    for factor in (1, 2, 4, 8):
        measure_growth(answer, f"{SAVED} tensors of {factor * small / 2**20:g} MiB", factor * small)
    for modules in (16, 160, 1_600):
        measure_growth(answer, f"{modules:,} modules", small, modules=modules)
    for steps in (2, 50, 500):
        measure_growth(answer, f"after {steps:,} steps", small, steps_before=steps)
    answer.state(threads="1", saved=f"{SAVED} tensors per step, all of which leave")


if __name__ == "__main__":
    answer_question(measure, rounds=9)
