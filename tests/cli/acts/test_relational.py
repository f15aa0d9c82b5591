from __future__ import annotations

from shorthaul.cli.acts.relational import LOSS_TOLERANCE, show_relational
from shorthaul.cli.acts.stage import Stage


def test_the_act_holds_and_both_trainings_learn():
    said: list[str] = []
    outcome = show_relational(Stage(is_quick=True, say=said.append))
    plain, ours = outcome.figures["plain"], outcome.figures["shorthaul"]
    assert outcome.holds
    assert ours["losses"][-1] < ours["losses"][0]
    assert abs(plain["losses"][-1] - ours["losses"][-1]) < LOSS_TOLERANCE
    assert any("step 2" in each for each in said)
