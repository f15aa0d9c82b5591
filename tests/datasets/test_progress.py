"""The bar appears when asked for, and items always come through."""

import pytest

from shorthaul.datasets.progress import with_progress
from shorthaul.settings import settings


@pytest.mark.parametrize(("wanted", "shown"), [("on", True), ("off", False), ("auto", False)])
def test_progress(wanted: str, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with settings.override(progress=wanted):
        assert list(with_progress(["a", "b", "c"], "reading letters")) == ["a", "b", "c"]
    captured = capsys.readouterr()
    assert ("reading letters" in captured.err) == shown
    assert captured.out == ""
