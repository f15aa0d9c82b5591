"""Roles are played in processes of their own, and what they say and do comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from shorthaul.cli.acts import theater
from shorthaul.cli.acts.stage import Act, Played, Run
from shorthaul.integrations.run import ALLOCATOR

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
    plain, ours, large = played.runs
    assert played.holds
    assert played.difference == 0
    assert len(plain.losses) == 3
    assert plain.extra["steps"] == 2
    assert plain.extra["quick"] is True
    # Freed memory is only kept where plain PyTorch's users would have it kept.
    assert (plain.extra["tunables"], ours.extra["tunables"]) == (None, ALLOCATOR)
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
