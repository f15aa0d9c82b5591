"""Tests of what a whole process takes: each in one in which nothing else has run."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_VARIABLE = "SHORTHAUL_TEST_ALONE"


def in_own_process(test: Callable[[Path], None]) -> Callable[[Path, pytest.FixtureRequest], None]:
    """Have a test that takes `tmp_path` run by a Python of its own."""

    @functools.wraps(test)
    def run(tmp_path: Path, request: pytest.FixtureRequest) -> None:
        name = request.node.nodeid
        if os.environ.get(_VARIABLE) == name:
            test(tmp_path)
            return
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", name],
            cwd=ROOT,
            env=os.environ | {_VARIABLE: name},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:]

    del run.__wrapped__  # pytest would ask it for its arguments
    return run
