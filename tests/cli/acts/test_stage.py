from __future__ import annotations

import dataclasses

from shorthaul.cli.acts.report import HEADINGS, describe, rows_of
from shorthaul.cli.acts.stage import Act, Played, Run, select

ACT = Act("one", "module", "One", ("plain", "shorthaul"), tolerance=0.1)
PLAIN = Run("plain", "kept", (2.0, 1.0), 0.5, 2.0, peak_bytes=2**30)
OURS = Run("shorthaul", "moved", (2.0, 1.05), 1.5, 1.0, peak_bytes=2**29, written_bytes=2**20)


def test_losses_must_agree_within_the_tolerance():
    played = Played(ACT, (PLAIN, OURS), 5.0)
    assert played.holds
    assert played.sentence() == (
        "50% of the memory and 50% of the time of plain PyTorch; losses within 0.05."
    )
    strict = Played(dataclasses.replace(ACT, tolerance=0.01), (PLAIN, OURS), 5.0)
    assert not strict.holds
    shorter = dataclasses.replace(OURS, losses=(2.0,))
    assert not Played(ACT, (PLAIN, shorter), 5.0).holds


def test_a_missing_run_is_told():
    failed = Run("shorthaul", "shorthaul", failure="MemoryError: no", peak_bytes=5)
    played = Played(ACT, (PLAIN, failed), 5.0)
    assert not played.holds
    assert "did not come to its end" in played.sentence()
    rows = rows_of([played])
    assert [len(row) for row in rows] == [len(HEADINGS)] * 2
    assert rows[1][1] == "shorthaul: failed: MemoryError: no"


def test_a_role_that_must_fail_must_fail():
    act = dataclasses.replace(ACT, roles=("plain", "limited", "shorthaul"), must_fail="limited")
    limited = Run("limited", "limited", failure="MemoryError: no")
    held = Played(act, (PLAIN, limited, OURS), 5.0)
    assert held.holds
    assert "Within the memory limit plain PyTorch fails" in held.sentence()
    survived = dataclasses.replace(PLAIN, role="limited")
    assert not Played(act, (PLAIN, survived, OURS), 5.0).holds


def test_what_is_lost_is_told_too():
    slow = dataclasses.replace(OURS, seconds=40.0)
    assert "20.0 times the time" in Played(ACT, (PLAIN, slow), 5.0).sentence()


def test_everything_shown_is_plain_values():
    document = describe([Played(ACT, (PLAIN, OURS), 5.0)])
    assert document["holds"] is True
    (act,) = document["acts"]
    assert act["runs"][1]["written_bytes"] == 2**20
    assert act["difference"] == OURS.losses[1] - PLAIN.losses[1]


def test_acts_are_selected_by_name():
    other = dataclasses.replace(ACT, name="two")
    assert select((ACT, other), ("two",)) == (other,)
    assert select((ACT, other), ()) == (ACT, other)
