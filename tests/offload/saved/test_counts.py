from __future__ import annotations

import dataclasses

from shorthaul.offload.saved.counts import Counts


def test_counts_start_at_nothing_and_do_not_share_their_reasons():
    first, second = Counts(), Counts()
    first.left_alone["parameter"] += 1
    values = dataclasses.asdict(second)
    assert not any(values.values())
    assert first.left_alone["parameter"] == 1
