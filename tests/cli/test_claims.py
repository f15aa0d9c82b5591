"""`shorthaul claims` in a checkout, and outside of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shorthaul.cli.program import program


def test_outside_of_a_checkout_it_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(program, ["claims"])
    assert done.exit_code == 1
    assert "not inside a checkout" in done.output


def test_a_claim_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    done = CliRunner().invoke(program, ["claims", "P3"])
    assert done.exit_code == 0, done.output
    assert "not testable here" in capfd.readouterr().out
