"""Names the large packages, modules and functions at the end of a run: signs to look at."""

from pathlib import Path

import pytest

from tests.house.sizes import list_signs

SOURCE = Path(__file__).parents[2] / "src" / "shorthaul"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    signs = list_signs(SOURCE)
    if signs:
        terminalreporter.section(f"{len(signs)} signs to look at: large things")
        for sign in signs:
            terminalreporter.write_line(sign)
