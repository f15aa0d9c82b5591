"""The oracle of offloading: the same step with everything kept, compared to the last bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import shorthaul as sh

Step = Callable[[], torch.Tensor]


def small_offload(directory: Any, **knobs: Any) -> sh.offload.ActivationOffload:
    """An offloading context that moves even small tensors."""
    return sh.offload_activations(directory, **{"minimum_bytes": 1024, **knobs})


def gradients_of(leaves: Sequence[torch.Tensor], step: Step) -> list[torch.Tensor | None]:
    """Run `step`, which returns a scalar, backward, and return the leaves' gradients."""
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(0)
    step().backward()
    return [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def require_equal(
    expected: Sequence[torch.Tensor | None], got: Sequence[torch.Tensor | None]
) -> None:
    """Raise unless the gradients are the same bits."""
    assert len(expected) == len(got), f"{len(expected)} gradients expected, {len(got)} came"
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):
        if want is None or have is None:
            assert want is have, f"gradient {index}: one is None"
        else:
            assert torch.equal(want, have), (
                f"gradient {index} differs by {(want - have).abs().max().item()}"
            )


def settled_report(offload: sh.offload.ActivationOffload) -> sh.offload.OffloadReport:
    """The report once engine threads have let go of what they moved last."""
    offload.store.wait_until_idle()
    for _ in range(500):
        report = offload.report()
        if report.live_bytes == 0 and report.disk_bytes == 0:
            break
        time.sleep(0.004)
    return report


def require_bit_equal(
    directory: Any, leaves: Sequence[torch.Tensor], step: Step, *, least: int = 1, **knobs: Any
) -> sh.offload.OffloadReport:
    """Compare `step` with and without offloading, twice, and leave nothing behind.

    At least `least` storages must have been offloaded, or the comparison shows nothing.
    """
    expected = gradients_of(leaves, step)
    offload = small_offload(directory, **knobs)
    for _ in range(2):
        with offload:
            require_equal(expected, gradients_of(leaves, step))
    report = settled_report(offload)
    assert report.counts.offloaded >= least, report
    assert report.live_bytes == 0, "something is still in memory"
    assert report.disk_bytes == 0, "a slot was not given back"
    return report
