"""What every test runs under: nothing of the user's is read or written."""

from __future__ import annotations

import signal

import pytest

from shorthaul.settings import settings

# Started in the background by a shell, tests ignore SIGINT, and so would the programs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_state_directory(tmp_path_factory):
    """Counts of bytes written belong to the test, not to the machine."""
    with settings.override(state_directory=tmp_path_factory.mktemp("state")):
        yield
