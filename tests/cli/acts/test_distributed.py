from __future__ import annotations

import copy

import pytest

from shorthaul.cli.acts import distributed
from shorthaul.cli.acts.stage import Stage


@pytest.fixture(scope="module")
def seen():
    """The act, shown once, and what its ranks said."""
    real, found = distributed._run_ranks, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_run_ranks", lambda folder: found.extend(real(folder)) or found)
        return distributed.show_distributed(Stage(is_quick=True)), found


def test_two_ranks_see_what_one_process_sees(seen):
    outcome, _ = seen
    assert outcome.holds
    assert len(outcome.figures["ranks"]) == 2
    for each in outcome.figures["ranks"]:
        assert each["far_rows"] > 0
        assert each["received_bytes"] > each["far_rows"] * 256
    assert outcome.rows[-1] == ("rows and seeds", "as in one process")


@pytest.mark.parametrize("lost", ["seeds", "sums"])
def test_a_wrong_row_or_a_lost_seed_is_noticed(monkeypatch, seen, lost):
    changed = copy.deepcopy(seen[1])
    changed[1][lost] = changed[1][lost][1:]
    monkeypatch.setattr(distributed, "_run_ranks", lambda _: changed)
    assert not distributed.show_distributed(Stage(is_quick=True)).holds
