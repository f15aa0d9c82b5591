"""Measure once, remember on disk: on, off and forced, and whatever may be wrong with the file.

Nothing here depends on real speed: the candidates move a clock of their own.
"""

import itertools
import json
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from shorthaul.errors import CacheOwnershipError, TuningError
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.jit.autotune import (
    ROUNDS,
    forget_choices,
    measure_candidates,
    recall_choice,
    remembered_choices,
)
from shorthaul.jit.toolchain import Processor
from shorthaul.settings import settings

module = sys.modules[Candidate.__module__]


class Clock:
    """A clock that only candidates move."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, []

    def candidate(self, name: str, *seconds: float) -> Candidate:
        """A candidate whose runs take these seconds in turn, the last forever."""
        durations = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def run() -> None:
            self.log.append(name)
            self.now += next(durations)

        return Candidate(name, run)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    with settings.override(cache_directory=tmp_path / "cache"):
        yield tmp_path / "cache"


def only_file(directory: Path) -> Path:
    (path,) = (directory / "tuning").iterdir()
    return path


# ---- measuring


def test_the_fastest_is_chosen_and_every_median_told(clock: Clock) -> None:
    choice = autotune("key", [clock.candidate("a", 3.0), clock.candidate("b", 2.5)])
    assert choice == Choice("b", "measured", {"a": 3.0, "b": 2.5}, {})


@pytest.mark.parametrize(("seconds", "chosen"), [(0.98, "safe"), (0.96, "fast"), (1.2, "safe")])
def test_what_is_preferred_is_kept_unless_another_is_clearly_faster(
    clock: Clock, seconds: float, chosen: str
) -> None:
    candidates = [clock.candidate("fast", seconds), clock.candidate("safe", 1.0)]
    assert autotune("key", candidates, preferred="safe").name == chosen
    assert autotune("key", candidates, preferred="safe").origin == "remembered"


def test_what_is_preferred_and_fails_is_not_kept(clock: Clock) -> None:
    candidates = [clock.candidate("fast", 1.0), failing(0, ValueError("no such width"))]
    assert autotune("key", candidates, preferred="failing").name == "fast"


def test_candidates_are_warmed_up_and_then_run_in_turns(clock: Clock) -> None:
    measure_candidates([clock.candidate("a", 100.0, 1.0), clock.candidate("b", 100.0, 1.1)])
    assert clock.log == ["a", "b"] * (1 + ROUNDS)


def test_the_warm_up_does_not_count_and_the_median_does(clock: Clock) -> None:
    uneven = clock.candidate("uneven", 1000.0, 1.0, 9.0, 1.0, 9.0, 2.0, 3.0, 2.0, 2.0, 2.0)
    seconds, failures = measure_candidates([uneven])
    assert seconds == {"uneven": 2.0}
    assert failures == {}


def test_a_hopeless_candidate_is_dropped_after_two_turns(clock: Clock) -> None:
    seconds, _ = measure_candidates(
        [clock.candidate("slow", 1.6), clock.candidate("fast", 1.0), clock.candidate("near", 1.4)]
    )
    assert [clock.log.count(name) for name in ("slow", "fast", "near")] == [
        3,
        1 + ROUNDS,
        1 + ROUNDS,
    ]
    assert seconds == pytest.approx({"slow": 1.6, "fast": 1.0, "near": 1.4})


def test_one_slow_run_does_not_make_a_candidate_hopeless(clock: Clock) -> None:
    seconds, _ = measure_candidates(
        [clock.candidate("disturbed", 1.0, 50.0, 1.0), clock.candidate("steady", 1.2)]
    )
    assert min(seconds, key=seconds.__getitem__) == "disturbed"


def test_progress_names_each_candidate_before_it_runs(clock: Clock) -> None:
    told: list[tuple[str, int]] = []
    autotune(
        "key",
        [clock.candidate("a", 1.0), clock.candidate("b", 1.0)],
        on_progress=lambda name: told.append((name, len(clock.log))),
    )
    assert told == [("a", 0), ("b", 1)]


# ---- candidates that fail


def failing(when: int, error: Exception) -> Candidate:
    runs = itertools.count()

    def run() -> None:
        if next(runs) >= when:
            raise error

    return Candidate("failing", run)


@pytest.mark.parametrize("when", [0, 1, 2, 5])
def test_a_candidate_that_raises_is_left_out_and_its_reason_kept(clock: Clock, when: int) -> None:
    candidates = [failing(when, ValueError("no such width")), clock.candidate("works", 5.0)]
    choice = autotune("key", candidates)
    assert choice.name == "works"
    assert choice.seconds == {"works": 5.0}
    assert choice.failures == {"failing": "ValueError: no such width"}
    assert autotune("key", candidates).failures == choice.failures  # remembered too


def test_if_all_candidates_fail_the_reasons_are_told_and_nothing_is_remembered() -> None:
    other = Candidate("other", lambda: {}["missing"])
    with pytest.raises(TuningError) as caught:
        autotune("conv 3x3", [failing(0, MemoryError("too large")), other])
    assert str(caught.value) == (
        "conv 3x3: every candidate failed.\n"
        "  failing: MemoryError: too large\n"
        "  other: KeyError: 'missing'"
    )
    assert remembered_choices() == {}


def test_an_interruption_is_not_a_failure_of_the_candidate() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        autotune("key", [Candidate("a", interrupt)])


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_candidates_that_cannot_be_told_apart_are_refused(names: list[str]) -> None:
    with pytest.raises(TuningError, match="candidates need distinct names and at least one"):
        autotune("key", [Candidate(name, lambda: None) for name in names])


# ---- remembering


def test_a_choice_is_remembered(clock: Clock, directory: Path) -> None:
    candidates = [clock.candidate("a", 2.0), clock.candidate("b", 1.5)]
    autotune("key", candidates)
    runs = len(clock.log)
    assert autotune("key", candidates) == Choice("b", "remembered", {"a": 2.0, "b": 1.5}, {})
    assert len(clock.log) == runs
    assert stat.S_IMODE((directory / "tuning").stat().st_mode) == 0o700


def test_another_key_is_another_choice(clock: Clock) -> None:
    autotune("first", [clock.candidate("a", 1.0), clock.candidate("b", 2.0)])
    choice = autotune("second", [clock.candidate("a", 2.0), clock.candidate("b", 1.0)])
    assert (choice.name, choice.origin) == ("b", "measured")


def test_another_processor_is_another_choice(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Processor("x86_64 Here", ("avx2",))
    for processor in (
        here,
        Processor("x86_64 Elsewhere", ("avx2",)),
        Processor("x86_64 Here", ("avx2", "avx512f")),
    ):
        monkeypatch.setattr(module, "read_processor", lambda found=processor: found)
        assert autotune("key", [clock.candidate("a", 1.0)]).origin == "measured"
    monkeypatch.setattr(module, "read_processor", lambda: here)
    assert autotune("key", [clock.candidate("a", 1.0)]).origin == "remembered"
    assert list(remembered_choices()) == [
        *("key", "key on x86_64 Elsewhere", "key on x86_64 Here"),
    ]


def test_a_winner_that_is_no_longer_a_candidate_is_measured_again(clock: Clock) -> None:
    autotune("key", [clock.candidate("old", 1.0), clock.candidate("b", 2.0)])
    choice = autotune("key", [clock.candidate("b", 2.0), clock.candidate("c", 3.0)])
    assert (choice.name, choice.origin) == ("b", "measured")
    assert remembered_choices()["key"].name == "b"


def test_a_loser_that_is_no_longer_a_candidate_changes_nothing(clock: Clock) -> None:
    autotune("key", [clock.candidate("a", 1.0), clock.candidate("old", 2.0)])
    assert autotune("key", [clock.candidate("a", 1.0)]).origin == "remembered"


def edited(**changes: object) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("null"),
        edited(seconds=[1.0]),
        edited(seconds={"a": "fast"}),
        edited(failures=None),
        lambda path: path.write_text('{"name": "a"}'),
    ],
)
def test_a_damaged_file_is_measured_again_and_mended(
    clock: Clock, directory: Path, damage: Callable[[Path], object]
) -> None:
    candidates = [clock.candidate("a", 1.0), clock.candidate("b", 2.0)]
    autotune("key", candidates)
    damage(only_file(directory))
    assert remembered_choices() == {}
    assert autotune("key", candidates).origin == "measured"
    assert autotune("key", candidates).origin == "remembered"


def test_no_half_written_file_is_left(clock: Clock, directory: Path) -> None:
    autotune("key", [clock.candidate("a", 1.0)])
    assert only_file(directory).suffix == ".json"


def test_a_directory_that_others_may_write_to_is_refused(clock: Clock, directory: Path) -> None:
    (directory / "tuning").mkdir(parents=True)
    (directory / "tuning").chmod(0o777)
    with pytest.raises(CacheOwnershipError):
        autotune("key", [clock.candidate("a", 1.0)])


# ---- on, off, force


def test_off_takes_the_first_and_measures_nothing(clock: Clock, directory: Path) -> None:
    with settings.override(autotune="off"):
        choice = autotune("key", [clock.candidate("a", 2.0), clock.candidate("b", 1.0)])
    assert choice == Choice("a", "default", {}, {})
    assert clock.log == []
    assert not directory.exists()


def test_off_takes_what_is_remembered(clock: Clock) -> None:
    candidates = [clock.candidate("a", 2.0), clock.candidate("b", 1.0)]
    autotune("key", candidates)
    with settings.override(autotune="off"):
        assert autotune("key", candidates).name == "b"
        assert autotune("key", candidates[:1]) == Choice("a", "default", {}, {})


def test_force_measures_again(clock: Clock) -> None:
    autotune("key", [clock.candidate("a", 1.0), clock.candidate("b", 2.0)])
    with settings.override(autotune="force"):
        choice = autotune("key", [clock.candidate("a", 2.0), clock.candidate("b", 1.0)])
    assert (choice.name, choice.origin) == ("b", "measured")
    assert remembered_choices()["key"].name == "b"


# ---- looking at it


def test_what_is_remembered_can_be_listed_and_forgotten(clock: Clock, directory: Path) -> None:
    assert remembered_choices() == {}
    assert forget_choices() == 0
    autotune("b key", [clock.candidate("x", 1.0)])
    autotune("a key", [clock.candidate("y", 2.0)])
    assert remembered_choices() == {
        "a key": Choice("y", "remembered", {"y": 2.0}, {}),
        "b key": Choice("x", "remembered", {"x": 1.0}, {}),
    }
    assert remembered_choices(directory) == remembered_choices()
    assert forget_choices() == 2
    assert remembered_choices() == {}
    assert autotune("b key", [clock.candidate("x", 1.0)]).origin == "measured"


def test_a_directory_of_ones_own_can_be_named(clock: Clock, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    autotune("key", [clock.candidate("a", 1.0)], directory=elsewhere)
    assert remembered_choices() == {}
    assert list(remembered_choices(elsewhere)) == ["key"]
    assert forget_choices(elsewhere) == 1


def test_a_choice_is_recalled_without_measuring(tmp_path: Path) -> None:
    assert recall_choice("answer", tmp_path) is None
    autotune("answer", [Candidate("only", lambda: None)], directory=tmp_path)
    recalled = recall_choice("answer", tmp_path)
    assert recalled is not None
    assert (recalled.name, recalled.origin) == ("only", "remembered")


def test_work_that_goes_on_after_its_call_has_a_clock_of_its_own(tmp_path: Path) -> None:
    asked: list[str] = []
    seconds = {"a": 2.0, "b": 1.0}

    def clock(run: Callable[[], object]) -> float:
        name = str(run())
        asked.append(name)
        return seconds[name]

    candidates = [Candidate("a", lambda: "a"), Candidate("b", lambda: "b")]
    choice = autotune("key", candidates, directory=tmp_path, clock=clock)
    assert (choice.name, choice.seconds["b"]) == ("b", 1.0)
    assert {*asked} == {"a", "b"}
