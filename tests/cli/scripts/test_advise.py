"""`shorthaul fit --dry`: from shapes alone."""

from pathlib import Path

import pytest

BUILD = """
import torch
from torch import nn

def build():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024))
    return model, torch.empty(4096, 1024), torch.optim.AdamW(model.parameters())

def forgets():
    return nn.Linear(2, 2)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dry_builders.py").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_dry_fit_says_what_each_configuration_needs(shorthaul) -> None:
    shown = shorthaul("fit", "--dry", "--memory", "64GiB", "dry_builders:build")
    assert shown.exit_code == 0, shown.output
    assert "gradients 8.0 MiB, optimizer states 16.0 MiB" in shown.output
    assert shown.output.count("  yes") == 5
    small = shorthaul("fit", "--dry", "--memory", "1MiB", "dry_builders:build")
    assert small.exit_code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fit", "--dry", "--memory", "1GiB", "dry_builders:forgets"), "a model and a batch"),
        (("fit", "--dry", "--memory", "1GiB", "--save", "x", "dry_builders:build"), "alone"),
        (("fit", "dry_builders:build"), "Missing option '--memory'"),
        (("advise", "-m"), "-m needs the name of a module"),
    ],
)
def test_words_that_make_no_question(shorthaul, words: tuple[str, ...], told: str) -> None:
    shown = shorthaul(*words)
    assert shown.exit_code in (1, 2)
    assert told in shown.output
