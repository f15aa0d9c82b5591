"""What a script's process held over time, and what one of its steps held, module by module."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from shorthaul.advice.watching.observation import Observer, StepMemory, by_prefix
from shorthaul.host_memory import resident_bytes

_WATCHED_STEP = 3  # kernels are chosen and plans made in the ones before
_MOST_POINTS = 1000  # of each series; when there are more, every second one is dropped


@dataclass
class ScriptTimeline:
    """Looks at the process when its models are called and when a backward pass is over."""

    resident: list[tuple[float, int]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    held: dict[str, Any] | None = None  # over one step: seconds, and bytes by module
    _began: float = field(default_factory=time.perf_counter)
    _every: int = 1  # of the looks, which one is kept
    _looks: int = 0
    _steps: int = 0
    _last_step: float | None = None
    _observer: Observer | None = None

    def look(self) -> None:
        """Note what is resident now."""
        self._looks += 1
        if self._looks % self._every:
            return
        self.resident.append((time.perf_counter() - self._began, resident_bytes()))
        if len(self.resident) > _MOST_POINTS:
            del self.resident[::2]
            self._every *= 2

    def begin_step(self, module: nn.Module) -> None:
        """A model is called in training."""
        self.look()
        self._stop_watching()  # of a call that no backward pass followed
        now = time.perf_counter()
        if self._last_step is not None and len(self.step_seconds) < _MOST_POINTS:
            self.step_seconds.append(now - self._last_step)
        self._last_step = now
        self._steps += 1
        # A compiled model would be compiled anew to be watched.
        is_compiled = any(hasattr(each, "_orig_mod") for each in module.modules())
        if self._steps == _WATCHED_STEP and not is_compiled:
            self._observer = Observer(module)
            self._observer.__enter__()

    def end_backward(self) -> None:
        """A backward pass is over."""
        self.look()
        if self._observer is not None:
            observer = self._observer
            self._stop_watching()
            self.held = stack_by_module(observer.finish())

    def _stop_watching(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            with contextlib.suppress(RuntimeError):
                observer.__exit__(None, None, None)


def stack_by_module(memory: StepMemory, points: int = 300) -> dict[str, Any]:
    """Bytes of a step's tensors over time, by the module that made them, for a stacked chart."""
    # Each at its own peak: what leaves memory early is not there at the peak of all.
    most = [0] * len(memory.owners)
    for _, now in memory.held():
        most = list(map(max, most, now))
    peaks: dict[str, int] = {}
    for owner, size in zip(memory.owners, most, strict=True):
        peaks[owner.module] = peaks.get(owner.module, 0) + size
    names = list(by_prefix(peaks, limit=8))
    indices = [_find(owner.module, names) for owner in memory.owners]
    every = max(1, len(memory.changes) // points)
    seconds: list[float] = []
    series: list[list[int]] = [[] for _ in (*names, "")]
    for number, (when, now) in enumerate(memory.held()):
        if number % every and number != len(memory.changes) - 1:
            continue
        seconds.append(round(when, 6))
        sums = [0] * len(series)
        for index, size in zip(indices, now, strict=True):
            sums[index] += size
        for one, size in zip(series, sums, strict=True):
            one.append(size)
    named = dict(
        zip((*(name or "outside of modules" for name in names), "others"), series, strict=True)
    )
    return {"seconds": seconds, "modules": {k: v for k, v in named.items() if any(v)}}


def _find(module: str, names: list[str]) -> int:
    for index, name in enumerate(names):
        if module == name or (module.startswith(f"{name}.") and name):
            return index
    return len(names)
