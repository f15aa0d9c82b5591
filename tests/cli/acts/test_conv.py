from __future__ import annotations

import pytest

from shorthaul.cli.acts.conv import show_conv
from shorthaul.cli.acts.stage import Stage


def test_the_act_holds():
    pytest.importorskip("sklearn")
    outcome = show_conv(Stage(is_quick=True))
    plain, ours = outcome.figures["plain"], outcome.figures["shorthaul"]
    assert outcome.holds
    assert abs(plain["losses"][0] - ours["losses"][0]) < 1e-3
    assert len(plain["losses"]) == len(ours["losses"]) > 10
