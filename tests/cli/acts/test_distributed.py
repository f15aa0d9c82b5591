from __future__ import annotations

import copy

import pytest

from shorthaul.cli.acts import distributed
from shorthaul.cli.acts.cue import Cue


@pytest.fixture(scope="module")
def seen():
    """Both roles, played once, and what the ranks said."""
    real, found = distributed.run_ranks, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "run_ranks", lambda folder: found.extend(real(folder)) or found)
        runs = [distributed.play(role, is_quick=True, cue=Cue()) for role in ("plain", "shorthaul")]
    return runs, found


def test_two_ranks_see_what_one_process_sees(seen):
    (plain, ours), _ = seen
    assert plain.losses == ours.losses
    assert plain.losses[0] == plain.losses[1] > 0
    assert len(ours.extra["ranks"]) == 2
    for each in ours.extra["ranks"]:
        assert each["far_rows"] > 0
        assert each["received_bytes"] > each["far_rows"] * 256


@pytest.mark.parametrize("lost", ["seeds", "sums"])
def test_a_wrong_row_or_a_lost_seed_is_noticed(monkeypatch, seen, lost):
    (plain, _), found = seen
    changed = copy.deepcopy(found)
    changed[1][lost] = changed[1][lost][1:]
    monkeypatch.setattr(distributed, "run_ranks", lambda _: changed)
    ours = distributed.play("shorthaul", is_quick=True, cue=Cue())
    assert ours.losses != plain.losses
