"""What does offloading cost for a tensor that is too small to move?

Every tensor that autograd saves passes through the hooks, and most are below the threshold. Here a
thousand operators on a hundred numbers go forward and backward: without hooks, with hooks that do
nothing, and inside `sh.offload_activations`. The goal is less than 2 microseconds per saved tensor,
packing and unpacking together, over the hooks that do nothing. An operator takes ten times that, and
its noise hides the difference on a busy machine; so the hooks are also called alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, Measured, same_bits

SAVED = 1000
NUMBERS = 100
NO_HOOKS, IDENTITY, OFFLOAD = "no hooks", "hooks that do nothing", "sh.offload_activations"


def measure(answer: Answer) -> None:
    x = torch.linspace(-1, 1, NUMBERS).requires_grad_()
    constant = torch.linspace(0.99, 1.01, NUMBERS)
    offload = sh.offload_activations()
    torch.set_num_threads(1)
    answer.state(threads="1", saved=f"{SAVED:,} tensors of {NUMBERS} float32 per step")
    for case, operator in (
        ("a result of another operator (sin)", torch.sin),
        ("a constant (mul)", lambda h: h * constant),
    ):
        measured = answer.compare(
            case, list_arms(x, operator, offload), baseline=IDENTITY, same=same_bits
        )
        add_cost(answer, measured)
    for case, tensor in (
        ("the hooks alone, a result of another operator", x * 2),
        ("the hooks alone, a constant", constant),
    ):
        measured = answer.compare(
            case, list_bare_arms(tensor, offload), baseline=IDENTITY, same=same_bits
        )
        add_cost(answer, measured)


def list_arms(
    x: torch.Tensor,
    operator: Callable[[torch.Tensor], torch.Tensor],
    offload: sh.offload.ActivationOffload,
) -> list[Arm]:
    """The same step under each kind of hooks; one event is one saved tensor."""

    def under(context: contextlib.AbstractContextManager[object]) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            with context:
                h = x
                for _ in range(SAVED):
                    h = operator(h)
                return torch.autograd.grad(h.sum(), x)[0]

        return step

    identity = torch.autograd.graph.saved_tensors_hooks(_itself, _itself)
    return [
        Arm(NO_HOOKS, under(contextlib.nullcontext()), events=SAVED),
        Arm(IDENTITY, under(identity), events=SAVED),
        Arm(OFFLOAD, under(offload), events=SAVED),
    ]


def list_bare_arms(tensor: torch.Tensor, offload: sh.offload.ActivationOffload) -> list[Arm]:
    """Packing and unpacking as autograd calls them, with no operator around."""

    def calls(
        pack: Callable[[torch.Tensor], object], unpack: Callable[[object], torch.Tensor]
    ) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            for _ in range(SAVED):
                given = unpack(pack(tensor))
            return given

        return run

    return [
        Arm(IDENTITY, calls(_itself, _itself), events=SAVED),
        Arm(OFFLOAD, calls(offload._pack, offload._unpack), events=SAVED),
    ]


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def add_cost(answer: Answer, measured: list[Measured]) -> None:
    """What each arm adds to hooks that do nothing, per saved tensor."""
    base = next(each for each in measured if each.arm == IDENTITY)
    for row, each in zip(answer.rows[-len(measured) :], measured, strict=True):
        row["figures"]["added_seconds"] = each.wall_seconds.median - base.wall_seconds.median
        row["figures"]["added_cpu_seconds"] = each.cpu_seconds.median - base.cpu_seconds.median


if __name__ == "__main__":
    answer_question(measure)
