from __future__ import annotations

from shorthaul.cli.acts.offload import show_offload
from shorthaul.cli.acts.stage import Stage


def test_the_act_holds_and_saves_memory():
    said: list[str] = []
    outcome = show_offload(Stage(is_quick=True, say=said.append))
    plain, ours = outcome.figures["plain"], outcome.figures["shorthaul"]
    assert outcome.holds
    assert plain["losses"] == ours["losses"]
    assert ours["activation_bytes"] <= plain["activation_bytes"] / 3
    assert plain["written_bytes"] == 0 < ours["written_bytes"]
    assert any("step 3" in each for each in said)
