"""Measure once, remember on disk: which of several ways is the fastest on this processor.

It knows candidates and seconds, and nothing of what a candidate computes.

>>> import tempfile, time
>>> from pathlib import Path
>>> slow = Candidate("slow", lambda: time.sleep(0.003))
>>> fast = Candidate("fast", lambda: None)
>>> with tempfile.TemporaryDirectory() as cache:
...     chosen = autotune("example", [slow, fast], directory=Path(cache))
...     again = autotune("example", [slow, fast], directory=Path(cache))
>>> chosen.name, chosen.origin, again.origin
('fast', 'measured', 'remembered')
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shorthaul.errors import TuningError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.kernel_cache import make_private_directory
from shorthaul.jit.private_cache import why_unwritable
from shorthaul.jit.toolchain import read_processor
from shorthaul.settings import settings
from shorthaul.whole_file import whole_file

ROUNDS = 9
# A candidate whose first two runs are this much slower than the fastest run seen is not measured
# further: the noise of a shared machine is well below 50 % in the better of two runs.
HOPELESS_RATIO = 1.5


# By so much another candidate must be faster than the one that is preferred: medians of a few rounds differ by up to
# this much where the two are the same.
CLEAR_MARGIN = 0.03


Clock = Callable[[Callable[[], object]], float]


@dataclass(frozen=True)
class Candidate:
    """A way of doing the work: its name, and a call that does it once."""

    name: str  # unique among the candidates
    run: Callable[[], object]  # does the work once


@dataclass(frozen=True)
class Choice:
    """The candidate to use, and where that knowledge comes from."""

    name: str  # of the candidate
    origin: str  # measured, remembered or default
    seconds: Mapping[str, float] = field(default_factory=dict)  # median of each that was measured
    failures: Mapping[str, str] = field(default_factory=dict)  # why each of the others was not


@dataclass(frozen=True)
class _Remembered:
    """A choice on disk: what it was made for, and on which processor."""

    key: str
    processor: str
    choice: Choice


def autotune(
    key: str,
    candidates: Sequence[Candidate],
    *,
    preferred: str | None = None,
    directory: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Choice:
    """The fastest of `candidates` for `key` on this processor.

    Obeys `settings.autotune`: `on` measures what is not remembered, `force` measures again, `off`
    measures nothing and takes what is remembered, else the first candidate. A remembered winner
    that is no longer among the candidates is measured again. A candidate that raises is left out,
    and the choice keeps its reason; `TuningError` if all do.

    Args:
        key: Everything else that the ranking depends on, such as shapes, dtype and threads.
        candidates: The ways of doing the work, the one to take without a measurement first.
        preferred: The candidate to keep unless another one is faster by more than noise; None (default)
            takes the fastest, by however little.
        directory: Where choices are remembered; None (default) takes the cache directory.
        on_progress: Called with each candidate's name before it is measured; None by default.
        clock: The seconds that a call takes, for work that is not over when the call is; None
            (default) takes the host's.
    """
    names = [each.name for each in candidates]
    if not names or len(set(names)) != len(names):
        raise TuningError(f"{key}: candidates need distinct names and at least one, got {names}.")
    path = _path(key, directory)
    remembered = _recall(path)
    if remembered is not None and remembered.choice.name in names and settings.autotune != "force":
        return remembered.choice
    if settings.autotune == "off":
        return Choice(names[0], "default")
    seconds, failures = measure_candidates(candidates, on_progress=on_progress, clock=clock)
    if not seconds:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in failures.items())
        raise TuningError(f"{key}: every candidate failed.{reasons}")
    choice = Choice(_find_fastest(seconds, preferred), "measured", seconds, failures)
    _remember(path, key, choice)
    return choice


def _find_fastest(seconds: Mapping[str, float], preferred: str | None) -> str:
    fastest = min(seconds, key=seconds.__getitem__)
    if (
        preferred is not None
        and preferred in seconds
        and seconds[fastest] > (1 - CLEAR_MARGIN) * seconds[preferred]
    ):
        return preferred
    return fastest


def measure_candidates(
    candidates: Sequence[Candidate],
    *,
    rounds: int = ROUNDS,
    on_progress: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds of each candidate that works, and why each of the others does not.

    Warmed up, hopeless ones dropped early, and in turns, because the machine's speed drifts: a
    candidate measured alone in a slow second loses.
    """
    failures: dict[str, str] = {}
    clock = clock or time_on_host
    for candidate in candidates:
        if on_progress is not None:
            on_progress(candidate.name)
        _time_once(candidate, failures, clock)  # warm-up: page faults, caches, lazy compilation
    samples: dict[str, list[float]] = {each.name: [] for each in candidates}
    running = list(candidates)
    for turn in range(rounds):
        running = [each for each in running if each.name not in failures]
        for candidate in running:
            samples[candidate.name].append(_time_once(candidate, failures, clock))
        if turn == 1 and running:
            limit = HOPELESS_RATIO * min(min(samples[each.name]) for each in running)
            running = [each for each in running if min(samples[each.name]) <= limit]
    seconds = {
        name: statistics.median(taken) for name, taken in samples.items() if name not in failures
    }
    return seconds, failures


def time_on_host(run: Callable[[], object]) -> float:
    """The seconds until `run` returns."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _time_once(candidate: Candidate, failures: dict[str, str], clock: Clock) -> float:
    try:
        return clock(candidate.run)
    except Exception as error:  # whatever it is: the others can still be compared
        failures[candidate.name] = f"{type(error).__name__}: {error}"
        return math.inf


def recall_choice(key: str, directory: Path | None = None) -> Choice | None:
    """What is remembered for `key` on this processor; nothing is measured."""
    found = _recall(_path(key, directory))
    return None if found is None else found.choice


def remembered_choices(directory: Path | None = None) -> dict[str, Choice]:
    """Everything remembered, by key; one made on another processor is named `<key> on <model>`."""
    named: dict[str, Choice] = {}
    for path in _directory(directory).glob("*.json"):
        found = _recall(path)
        if found is not None:
            is_ours = path == _path(found.key, directory)
            named[found.key if is_ours else f"{found.key} on {found.processor}"] = found.choice
    return dict(sorted(named.items()))


def forget_choices(directory: Path | None = None) -> int:
    """Forget everything; returns how many choices there were."""
    paths = list(_directory(directory).glob("*.json"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _directory(directory: Path | None) -> Path:
    return (directory or settings.cache_directory) / "tuning"


def _path(key: str, directory: Path | None) -> Path:
    identity = f"{read_processor()}\n{key}"
    return _directory(directory) / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _recall(path: Path) -> _Remembered | None:
    """What the file says; `None` if it is absent, cut off, or not ours."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        seconds = {str(name): float(taken) for name, taken in stored["seconds"].items()}
        choice = Choice(str(stored["name"]), "remembered", seconds, dict(stored["failures"]))
        return _Remembered(str(stored["key"]), str(stored["processor"]), choice)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(path: Path, key: str, choice: Choice) -> None:
    stored = {
        "key": key,
        "processor": read_processor().model,
        "name": choice.name,
        "seconds": dict(choice.seconds),
        "failures": dict(choice.failures),
    }
    try:
        make_private_directory(path.parent)
        with whole_file(path) as file:
            file.write(json.dumps(stored, indent=1).encode())
    except OSError as error:
        reason = why_unwritable(error)
        if reason is None:
            raise
        note_fallback(f"choices tuned in {path.parent}", "tuning in each process", reason)
