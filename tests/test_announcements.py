"""What takes long is said once beforehand: to the log, and to a terminal that shows progress."""

from __future__ import annotations

import logging

import pytest

from shorthaul.announcements import announce
from shorthaul.settings import settings


@pytest.mark.parametrize(("progress", "is_shown"), [("on", True), ("auto", False), ("off", False)])
def test_it_goes_to_the_log_and_where_progress_is_shown(
    progress: str, is_shown: bool, caplog, capsys
) -> None:
    with settings.override(progress=progress), caplog.at_level(logging.INFO, "shorthaul"):
        announce("53 layers, about 20 s, once")
    assert [each.message for each in caplog.records] == ["53 layers, about 20 s, once"]
    assert ("53 layers" in capsys.readouterr().err) == is_shown
