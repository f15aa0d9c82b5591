"""Roles are played in processes of their own, and what they say and do comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from shorthaul.cli.acts import theater
from shorthaul.cli.acts.stage import Act, Played, Run

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _find_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)


def play(*roles: str) -> tuple[Played, list[str]]:
    act = Act("tiny", "tests.cli.acts.tiny_act", "A moment", roles, 0.0)
    said: list[str] = []
    return theater.play(act, is_quick=True, say=said.append), said


def test_both_ways_are_played_in_processes_of_their_own() -> None:
    played, said = play("plain", "shorthaul", "large")
    plain, _, large = played.runs
    assert played.holds
    assert played.difference == 0
    assert len(plain.losses) == 6
    assert len(plain.step_seconds) == 2  # of a step in each turn; the first turn warms up
    assert plain.seconds == sum(plain.step_seconds) / 2
    assert plain.extra["quick"] is True
    assert large.peak_bytes > plain.peak_bytes + 60 * 2**20
    assert said[0] == "plain: starting"
    assert said[1].startswith("plain: step 1, loss ")
    assert Run.from_dict(plain.to_dict()) == plain


def test_a_role_that_fails_does_not_keep_the_others_from_the_stage() -> None:
    played, _ = play("plain", "fails", "dies", "shorthaul")
    assert not played.holds
    assert [each.failure for each in played.runs] == [
        None,
        "MemoryError: no room",
        "the process ended with 3: without a word",
        None,
    ]


def test_processes_take_turns() -> None:
    _, said = play("plain", "shorthaul")
    steps = [each.partition(",")[0] for each in said if "step" in each]
    assert steps == [
        f"{role}: step {number}"
        for turn in ((1, 2), (3, 4), (5, 6))
        for role in ("plain", "shorthaul")
        for number in turn
    ]


def test_a_process_that_ends_between_turns_is_told() -> None:
    played, _ = play("plain", "dies between turns")
    plain, other = played.runs
    assert plain.failure is None
    assert other.failure == "the process ended with 4: without a word"
