"""What every test runs under: nothing of the user's is read or written."""

from __future__ import annotations

import pytest

from shorthaul.settings import settings


@pytest.fixture(autouse=True)
def _own_state_directory(tmp_path_factory):
    """Counts of bytes written belong to the test, not to the machine."""
    with settings.override(state_directory=tmp_path_factory.mktemp("state")):
        yield
