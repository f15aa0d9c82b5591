"""What do activations on disk cost in time, and save in memory, against keeping and recomputing?

One step (forward, loss, backward) of GPT, BERT and T5 shapes. Arms: keep everything; offload within a
quarter of what keeping takes; recompute every block; recompute and offload; PyTorch's `save_on_cpu`;
the published adaptive rule. Then GPT on disks throttled to 100, 300 and 1000 MB/s.

`peak_live_bytes` is what saved storages take at their peak, as the offloading context counts them
(for keeping: all unique storages saved). `peak_growth_bytes` is the growth of resident memory over
the moment before the step, in a process of its own, with large blocks given back to the system when
they are freed, in all arms alike. The buffers of the offloading arms stay mapped from one step to the
next, so they are not part of it: add up to their `peak_live_bytes`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

import shorthaul as sh
from benchmarks.answer import Answer, answer_question
from benchmarks.measure import Arm, same_bits
from benchmarks.text_models import Shape, TextModel, make_batch
from shorthaul.meter import read_peak_resident_bytes, reset_peak_resident
from shorthaul.storage import open_engine, throttled_engine

KEEP = "keep everything"
ARMS = (
    KEEP,
    "offload",
    "recompute each block",
    "recompute and offload",
    "save_on_cpu",
    "published rule",
)
# Kept low, as the step's windows are part of what it takes.
WINDOWS = {"in_flight": "48MiB", "prefetch": "32MiB", "minimum_bytes": "256KiB"}
# glibc keeps freed blocks below a threshold that grows; fixed, so that memory shows what is in use.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}


@dataclass(frozen=True)
class Setting:
    """One step to be taken."""

    kind: str
    shape: Shape
    arm: str
    budget_bytes: int | None = None
    disk_bytes_per_second: float | None = None

    def make(self) -> tuple[Callable[[], tuple[torch.Tensor, ...]], Any]:
        """The step, which returns loss and gradients, and its offloading context if it has one."""
        is_checkpointed = self.arm.startswith("recompute")
        model = TextModel(self.kind, self.shape, is_checkpointed=is_checkpointed)
        batch = make_batch(self.shape)
        context = self.context()

        def step() -> tuple[torch.Tensor, ...]:
            model.zero_grad()
            with context:
                loss = model(*batch)
                loss.backward()
            return (loss.detach(), *(each.grad for each in model.parameters()))

        return step, context

    def context(self) -> Any:
        """What the step runs in."""
        if self.arm in (KEEP, "recompute each block"):
            return contextlib.nullcontext()
        if self.arm == "save_on_cpu":
            return torch.autograd.graph.save_on_cpu()
        knobs: dict[str, Any] = dict(WINDOWS)
        if self.arm == "published rule":
            knobs["policy"] = "ssdtrain"
        elif self.arm == "offload":
            knobs["budget"] = self.budget_bytes
        rate = self.disk_bytes_per_second
        if rate is not None:
            knobs["engine"] = lambda: throttled_engine(open_engine(), rate)
        return sh.offload_activations(**knobs)


def _keep(_: object) -> bool:
    return False


def count_saved(setting: Setting) -> int:
    """Bytes of unique storages that the step saves, all of them kept."""
    keeping = sh.offload_activations(policy=_keep, minimum_bytes=1)
    step, _ = replace(setting, arm=KEEP).make()
    with keeping:
        step()
    return int(keeping.report().counts.peak_saved_bytes)


def measure_peak(setting: Setting, threads: int, pipe: Any) -> None:
    """In a process of its own: growth of resident memory in the third step, and live bytes."""
    torch.set_num_threads(threads)
    step, context = setting.make()
    for _ in range(4 if setting.arm == "published rule" else 2):
        step()
    reset_peak_resident()
    before = read_peak_resident_bytes() or 0
    step()
    growth = (read_peak_resident_bytes() or 0) - before
    live = context.report().counts.peak_live_bytes if hasattr(context, "report") else None
    pipe.send((growth, live))


def peaks_of(setting: Setting) -> tuple[int, int | None]:
    """`measure_peak` in a process with the allocator's threshold fixed."""
    receive, send = multiprocessing.Pipe(duplex=False)
    before = dict(os.environ)
    os.environ.update(MALLOC)
    try:
        process = multiprocessing.get_context("spawn").Process(
            target=measure_peak, args=(setting, torch.get_num_threads(), send)
        )
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    send.close()
    try:
        peaks: tuple[int, int | None] = receive.recv()
    finally:
        process.join()
    return peaks


def compare_arms(
    answer: Answer, case: str, settings: Mapping[str, Setting], *, with_memory: bool = True
) -> None:
    """Measure the arms of one case in turns, and each one's memory by itself."""
    saved_bytes = count_saved(settings[KEEP])
    figures: dict[str, dict[str, float]] = {name: {} for name in settings}
    for name, setting in settings.items() if with_memory else ():
        growth_bytes, live_bytes = peaks_of(setting)
        figures[name] = {"peak_growth_bytes": growth_bytes}
        if name == KEEP:
            live_bytes = saved_bytes
        if live_bytes is not None:
            figures[name]["peak_live_bytes"] = live_bytes
            figures[name]["live_share"] = live_bytes / saved_bytes
    arms, contexts = [], []
    for name, setting in settings.items():
        step, context = setting.make()
        arms.append(Arm(name, step))
        contexts.append(context)
    answer.compare(case, arms, baseline=KEEP, same=same_bits, figures=figures, sample_seconds=0.0)
    for context in contexts:
        if hasattr(context, "close"):
            context.close()


def settings_of(kind: str, shape: Shape) -> dict[str, Setting]:
    """Every arm, with a quarter of what keeping takes as the offloading arm's budget."""
    budget_bytes = count_saved(Setting(kind, shape, KEEP)) // 4
    return {arm: Setting(kind, shape, arm, budget_bytes) for arm in ARMS}


def measure(answer: Answer) -> None:
    shape = Shape(width=128, layers=2, length=128) if answer.is_quick else Shape()
    for kind in ("gpt",) if answer.is_quick else ("gpt", "bert", "t5"):
        compare_arms(answer, kind, settings_of(kind, shape))
    plain = settings_of("gpt", shape)
    for rate in (100e6, 300e6, 1000e6):
        arms = {KEEP: plain[KEEP]}
        for name in ("offload", "published rule"):
            arms[name] = replace(plain[name], disk_bytes_per_second=rate)
        compare_arms(answer, f"gpt, disk of {rate / 1e6:.0f} MB/s", arms, with_memory=False)
    answer.state(
        disk="scratch directory, O_DIRECT, nothing in the page cache",
        model=f"width {shape.width}, {shape.layers} layers, length {shape.length}, "
        f"batch {shape.batch}, float32",
    )


if __name__ == "__main__":
    answer_question(measure, rounds=4)
