"""What every test runs under: nothing of the user's is read or written."""

from __future__ import annotations

import os
import signal

import pytest

from shorthaul.settings import settings

# Started in the background by a shell, tests ignore SIGINT, and so would the programs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Tests mean the CPU, also on a machine with GPUs; those marked `gpu` are asked for by `-m gpu`."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before CUDA starts, and for every child


SLOW_SECONDS = 1200  # that a slow test may take, unless it says otherwise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Names are the same in every process, which workers compare, and slow tests have time.

    A test that takes too long ends its worker, and with it every test that was still to come there.
    """
    for each in items:
        if " at 0x" in each.nodeid:
            raise pytest.UsageError(f"{each.nodeid} has an address in its name: give it ids")
        if each.get_closest_marker("slow") and not each.get_closest_marker("timeout"):
            each.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.fixture(autouse=True)
def _waiting_for_compilers():
    """Tests of kernels test kernels; those of what happens until they are compiled say so."""
    with settings.override(compiling="wait"):
        yield


@pytest.fixture(autouse=True)
def _own_state_directory(tmp_path_factory):
    """Counts of bytes written belong to the test, not to the machine."""
    with settings.override(state_directory=tmp_path_factory.mktemp("state")):
        yield
