from __future__ import annotations

import dataclasses

from shorthaul.cli.acts.report import HEADINGS, compare, describe, format_pair, rows_of
from shorthaul.cli.acts.stage import Act, Played, Run, select

ACT = Act("one", "module", "One", ("plain", "shorthaul"), tolerance=0.1)
PLAIN = Run("plain", "kept", (2.0, 1.0), 0.5, (2.0, 1.9, 9.0), peak_bytes=2**30)
OURS = Run("shorthaul", "moved", (2.0, 1.05), 1.5, (1.0,), peak_bytes=2**29, written_bytes=2**20)


def test_losses_must_agree_within_the_tolerance():
    played = Played(ACT, (PLAIN, OURS), 5.0)
    assert played.holds
    assert played.sentence() == ("moved, against kept: 50% of the peak memory, 2.0 times as fast.")
    strict = Played(dataclasses.replace(ACT, tolerance=0.01), (PLAIN, OURS), 5.0)
    assert not strict.holds
    shorter = dataclasses.replace(OURS, losses=(2.0,))
    assert not Played(ACT, (PLAIN, shorter), 5.0).holds


def test_a_missing_run_is_told():
    failed = Run("shorthaul", "shorthaul", failure="MemoryError: no", peak_bytes=5)
    played = Played(ACT, (PLAIN, failed), 5.0)
    assert not played.holds
    assert played.sentence() == "It did not finish: shorthaul: MemoryError: no."
    assert rows_of([played]) == [("one", "failed", "", "", "", "")]


def test_a_role_that_must_fail_must_fail():
    act = dataclasses.replace(ACT, roles=("plain", "limited", "shorthaul"), must_fail="limited")
    limited = Run("limited", "limited", failure="MemoryError: no")
    held = Played(act, (PLAIN, limited, OURS), 5.0)
    assert held.holds
    told = "With as little memory as shorthaul has, plain PyTorch fails (MemoryError)."
    assert held.sentence().endswith(told)
    survived = dataclasses.replace(PLAIN, role="limited")
    played = Played(act, (PLAIN, survived, OURS), 5.0)
    assert not played.holds
    assert played.sentence().endswith("plain PyTorch does NOT fail.")


def test_what_is_lost_is_told_too():
    slow = dataclasses.replace(OURS, step_seconds=(40.0,), peak_bytes=2**31)
    played = Played(ACT, (PLAIN, slow), 5.0)
    assert played.sentence().endswith("200% of the peak memory, 20.0 times slower.")
    assert rows_of([played])[0][2:4] == ("2.0 → 40.0 s (20.0x)", "1.00 → 2.00 GiB (2.00x)")


def test_a_row_for_each_act():
    assert rows_of([Played(ACT, (PLAIN, OURS), 5.0)]) == [
        (
            "one",
            "± 5e-02",
            "2.00 → 1.00 s (0.50x)",  # of medians: one slow step changes nothing
            "1.00 → 0.50 GiB (0.50x)",
            "0.50 → 1.50 s",
            "1.0 MiB",
        )
    ]
    other = dataclasses.replace(ACT, is_same_work=False, tolerance=0.01)
    assert rows_of([Played(other, (PLAIN, OURS), 5.0)]) == [
        ("one", "± 5e-02 (!)", "-", "-", "-", "1.0 MiB")
    ]
    assert len(HEADINGS) == 6


def test_pairs_share_a_unit():
    assert format_pair(0.5, 0.0004, "seconds") == "500 → 0 ms"
    assert format_pair(2000 * 2**20, 10, "bytes") == "1.95 → 0.00 GiB"
    assert format_pair(0.0, 0.0, "seconds") == "0.00 → 0.00 us"
    assert compare(100.0, 0.5, "seconds") == "100 → 0 s (0.005x)"
    assert compare(0.0, 1.0, "seconds") == "-"


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
