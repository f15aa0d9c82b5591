"""The ways of getting a step's activations out of the way, and what each takes in memory.

`peak_live_bytes` is what saved storages take at their peak, as the offloading context counts them
(for keeping: all unique storages saved; for recomputing: the blocks' inputs and the block at hand).
`peak_growth_bytes` is the growth of resident memory over the moment before the step, buffers for
reads and writes included, in a process of its own, with large blocks given back to the system when
they are freed, in all arms alike.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import shorthaul as sh
from benchmarks.arms.text_models import Shape, TextModel, make_batch
from benchmarks.measuring.answer import Answer
from benchmarks.measuring.measure import Arm, same_bits
from benchmarks.measuring.raw_traffic import RawTraffic
from shorthaul.meter import read_peak_resident_bytes, reset_peak_resident
from shorthaul.storage import open_engine, throttled_engine

KEEP = "keep everything"
OFFLOAD, OFFLOAD_LEAN = "offload to 30 %", "offload to 12 %"
RECOMPUTE, RECOMPUTE_OFFLOAD = "recompute each block", "recompute and offload"
CHOOSE = "offload or recompute"  # within 30 %, as the plan finds best
SAVE_ON_CPU, PUBLISHED = "save_on_cpu", "published rule"
# The bytes that 30 % leaves to the disk go there and back, and nothing else is done for them.
TRAFFIC = "keep, beside the same traffic"
SHARES = {OFFLOAD: 0.3, OFFLOAD_LEAN: 0.12, CHOOSE: 0.3}
ALL_ARMS = (
    KEEP,
    OFFLOAD,
    OFFLOAD_LEAN,
    RECOMPUTE,
    RECOMPUTE_OFFLOAD,
    SAVE_ON_CPU,
    PUBLISHED,
    TRAFFIC,
)
# Kept low, as the step's windows are part of what it takes.
WINDOWS = {"in_flight": "48MiB", "prefetch": "32MiB", "minimum_bytes": "256KiB"}
# glibc keeps freed blocks below a threshold that grows; fixed, so that memory shows what is in use.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
# The published rule decides after its third pass; the others plan after their first, and where they may
# recompute once more at the pace of a step that does.
STEPS_BEFORE = {PUBLISHED: 4, CHOOSE: 5}


@dataclass(frozen=True)
class Setting:
    """One step to be taken."""

    kind: str
    shape: Shape
    arm: str
    saved_bytes: int = 0  # that keeping everything takes
    disk_bytes_per_second: float | None = None
    threads: int | None = None

    def make(self) -> tuple[Callable[[], tuple[torch.Tensor, ...]], Any]:
        """The step, which returns loss and gradients, and its offloading context if it has one."""
        is_checkpointed = self.arm in (RECOMPUTE, RECOMPUTE_OFFLOAD)
        model = TextModel(self.kind, self.shape, is_checkpointed=is_checkpointed)
        if self.arm == CHOOSE:
            for block in [*model.blocks, *model.decoder]:
                sh.offload.region(block)
        batch = make_batch(self.shape)
        context = self.context()

        def step() -> tuple[torch.Tensor, ...]:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            model.zero_grad()
            with context:
                loss = model(*batch)
                loss.backward()
            return (loss.detach(), *(each.grad for each in model.parameters()))

        return step, context

    def context(self) -> Any:
        """What the step runs in."""
        if self.arm in (KEEP, RECOMPUTE):
            return contextlib.nullcontext()
        if self.arm == SAVE_ON_CPU:
            return torch.autograd.graph.save_on_cpu()
        if self.arm == TRAFFIC:
            return RawTraffic(int((1 - SHARES[OFFLOAD]) * self.saved_bytes))
        knobs: dict[str, Any] = dict(WINDOWS)
        if self.arm == PUBLISHED:
            knobs["policy"] = "ssdtrain"
        elif self.arm in SHARES:
            knobs["budget"] = int(SHARES[self.arm] * self.saved_bytes)
        rate = self.disk_bytes_per_second
        if rate is not None:
            knobs["engine"] = lambda: throttled_engine(open_engine(), rate)
        return sh.offload_activations(**knobs)


def settings_of(
    kind: str, shape: Shape, arms: Sequence[str] = ALL_ARMS, **conditions: Any
) -> dict[str, Setting]:
    """A setting for each arm, with budgets that are shares of what keeping takes."""
    saved_bytes = count_saved(Setting(kind, shape, KEEP))
    return {arm: Setting(kind, shape, arm, saved_bytes, **conditions) for arm in arms}


def _keep(_: object) -> bool:
    return False


def count_saved(setting: Setting) -> int:
    """Bytes of unique storages that the step saves, all of them kept."""
    keeping = sh.offload_activations(policy=_keep, minimum_bytes=1)
    step, _ = replace(setting, arm=KEEP).make()
    with keeping:
        step()
    saved_bytes = int(keeping.report().counts.peak_saved_bytes)
    keeping.close()
    return saved_bytes


def count_recomputing(setting: Setting) -> int:
    """Peak of the blocks' inputs and of the block that is being computed again."""
    counting = sh.offload_activations(policy=_keep, minimum_bytes=1)
    counting.policy.recomputed = frozenset(range(setting.shape.layers))
    model = TextModel(setting.kind, setting.shape)
    for block in [*model.blocks, *model.decoder]:
        sh.offload.region(block)
    with counting:
        model(*make_batch(setting.shape)).backward()
    live_bytes = int(counting.report().counts.peak_live_bytes)
    counting.close()
    return live_bytes


def measure_peak(setting: Setting, threads: int, pipe: Any) -> None:
    """In a process of its own: growth of resident memory in a step, and live bytes."""
    torch.set_num_threads(threads)
    step, context = setting.make()
    for _ in range(STEPS_BEFORE.get(setting.arm, 2)):
        step()
    if hasattr(context, "store"):
        context.store.pool.trim(0)  # so that the growth includes them
    reset_peak_resident()
    before = read_peak_resident_bytes() or 0
    step()
    growth = (read_peak_resident_bytes() or 0) - before
    pipe.send((growth, live_bytes_of(setting, context)))


def live_bytes_of(setting: Setting, context: Any) -> int:
    """Peak of live activation bytes of a setting whose steps ran in `context`."""
    if hasattr(context, "report"):
        return int(context.report().counts.peak_live_bytes)
    return count_recomputing(setting) if setting.arm == RECOMPUTE else setting.saved_bytes


def peaks_of(setting: Setting) -> tuple[int, int]:
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
        peaks: tuple[int, int] = receive.recv()
    finally:
        process.join()
    return peaks


def compare_arms(
    answer: Answer,
    case: str,
    settings: Mapping[str, Setting],
    *,
    with_memory: bool,
    with_live: bool = False,
) -> None:
    """Measure the arms of one case in turns, and each one's memory by itself.

    `with_live` only adds the live bytes of the steps that were timed.
    """
    if not answer.wants(case):
        return
    figures: dict[str, dict[str, float]] = {name: {} for name in settings}
    for name, setting in settings.items() if with_memory else ():
        growth_bytes, live_bytes = peaks_of(setting)
        figures[name] = {
            "live_share": live_bytes / setting.saved_bytes,
            "peak_live_bytes": live_bytes,
            "peak_growth_bytes": growth_bytes,
        }
    threads = torch.get_num_threads()
    arms, contexts = [], []
    for name, setting in settings.items():
        step, context = setting.make()
        for _ in range(STEPS_BEFORE.get(name, 2) - 2):  # comparing and warming up are two more
            step()
        arms.append(Arm(name, step))
        contexts.append(context)
    answer.compare(case, arms, baseline=KEEP, same=same_bits, figures=figures, sample_seconds=0.0)
    torch.set_num_threads(threads)
    if with_live:
        timed = zip(answer.rows[-len(arms) :], settings.values(), contexts, strict=True)
        for row, setting, context in timed:
            row["figures"]["peak_live_bytes"] = live_bytes_of(setting, context)
    for context in contexts:
        if hasattr(context, "close"):
            context.close()


def choose_shape(answer: Answer, batch: int = 4) -> Shape:
    """The shape of the models, small for a rehearsal."""
    return Shape(128, 8, 8, 256, batch) if answer.is_quick else Shape(batch=batch)


def state_conditions(answer: Answer, shape: Shape, **more: str) -> None:
    """What all questions on offloading have in common."""
    answer.state(
        disk="scratch directory, O_DIRECT, nothing in the page cache",
        model=f"width {shape.width}, {shape.layers} layers, length {shape.length}, float32",
        **more,
    )
