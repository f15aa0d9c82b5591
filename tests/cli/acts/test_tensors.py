from __future__ import annotations

from shorthaul.cli.acts.stage import Stage
from shorthaul.cli.acts.tensors import show_tensors


def test_the_act_holds_and_reads_its_features_from_disk():
    said: list[str] = []
    outcome = show_tensors(Stage(is_quick=True, say=said.append))
    plain, ours = outcome.figures["plain"], outcome.figures["shorthaul"]
    assert outcome.holds
    assert plain["losses"] == ours["losses"]
    assert plain["read_bytes"] == 0 < ours["read_bytes"]
    assert 0 < ours["hit_rate"] < 1
    assert any("step 2" in each for each in said)
