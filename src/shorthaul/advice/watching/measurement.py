"""What a step of a user's model takes, measured on the model itself, which is left as it was."""

from __future__ import annotations

import contextlib
import importlib
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.advice.watching.observation import ACTIVATIONS, GRADIENTS, Observer, StepMemory
from shorthaul.advice.watching.undisturbed import forget_gradients, undisturbed
from shorthaul.host_memory import give_memory_back, resident_bytes
from shorthaul.jit.compiling.loading import compiling, run_compiled
from shorthaul.meter import meter
from shorthaul.offload.profiling import call_model, find_loss

Loss = Callable[[Any], torch.Tensor] | None


@dataclass(frozen=True)
class Step:
    """Time and memory of one way to run a step."""

    seconds: float
    before_bytes: int  # resident when it began: libraries, parameters, data
    peak_bytes: int | None  # the most that was resident; None where the system does not tell

    @property
    def own_bytes(self) -> int | None:
        """What the step itself added at its peak."""
        return None if self.peak_bytes is None else max(0, self.peak_bytes - self.before_bytes)


@dataclass(frozen=True)
class Measured:
    """A step as it is, looked at from all sides."""

    step: Step
    memory: StepMemory
    forward_seconds: dict[str, float]  # by module, without those inside it; while it was watched

    @property
    def activation_bytes(self) -> int:
        """What autograd held at most."""
        return self.memory.peak_of(ACTIVATIONS)

    @property
    def gradient_bytes(self) -> int:
        """Gradients of parameters, when the step is over."""
        return self.memory.peak_of(GRADIENTS)

    @property
    def outside_bytes(self) -> int:
        """What was resident besides tensors: operators' work space, and what the allocator keeps."""
        return max(0, (self.step.own_bytes or 0) - self.memory.peak_bytes)


def measure_before() -> int:
    """What is resident before a step is watched, with what PyTorch imports to watch the first one."""
    importlib.import_module("torch._dynamo")
    give_memory_back()
    return resident_bytes()


def run_step(model: torch.nn.Module, batches: Iterable[Any], loss: Loss) -> None:
    """Forward and backward, of one batch after the other."""
    for each in batches:
        find_loss(call_model(model, each), loss).backward()  # type: ignore[no-untyped-call]


def observe_step(model: torch.nn.Module, batch: Any, loss: Loss) -> tuple[StepMemory, Observer]:
    """A step whose every tensor is watched, which makes it slower."""
    with undisturbed(model):
        with Observer(model) as observer:
            run_step(model, [batch], loss)
        return observer.finish(), observer


def time_steps(
    model: torch.nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    context: AbstractContextManager[Any] | None = None,
    repeats: int = 3,
    warm_ups: int = 1,
) -> Step:
    """The median time and the peak memory of steps, after others that warm up."""
    batches = list(batches)
    around = contextlib.nullcontext() if context is None else context
    with undisturbed(model):
        for _ in range(warm_ups):
            with around:
                run_step(model, batches, loss)
            forget_gradients(model)
        give_memory_back()
        before_bytes, seconds = resident_bytes(), []
        with meter() as measured:
            for _ in range(repeats):
                began = time.perf_counter()
                with around:
                    run_step(model, batches, loss)
                seconds.append(time.perf_counter() - began)
                forget_gradients(model)
        return Step(statistics.median(seconds), before_bytes, measured.peak_resident_bytes)


def time_compiled_steps(
    model: torch.nn.Module, batches: Iterable[Any], loss: Loss, **given: Any
) -> Step:
    """As `time_steps`, when every kernel is there: until then others do the work, and would be timed."""
    batches = list(batches)
    with undisturbed(model):

        def step() -> None:
            run_step(model, batches, loss)
            forget_gradients(model)

        run_compiled(step)
    with compiling("wait"):
        return time_steps(model, batches, loss, **given)


def measure(model: torch.nn.Module, batch: Any, loss: Loss) -> Measured:
    """The step as it is."""
    memory, observer = observe_step(model, batch, loss)
    step = time_steps(model, [batch], loss, warm_ups=0)
    return Measured(step, memory, dict(observer.forward_seconds))
