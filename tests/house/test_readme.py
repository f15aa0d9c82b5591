"""The README's lines of Python run as they are printed, in the script of a user who has a model."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


class Model(nn.Module):
    """A user's model, which returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.conv(batch).relu().mean()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the lines find in the user's script and folder."""
    monkeypatch.chdir(tmp_path)
    sh.save_features(tmp_path / "features.npy", torch.arange(20.0).reshape(10, 2))
    model, batch = Model(), torch.randn(2, 3, 8, 8)
    return {
        "sh": sh,
        "model": model,
        "batch": batch,
        "ids": torch.tensor([3, 1]),
        "x": torch.randn(5, 64),
        "edge_index": torch.tensor([[0, 1, 4], [2, 2, 0]]),
        "edge_type": torch.tensor([0, 44, 3]),
        "train_one_step": lambda: model(batch).backward(),
    }


def test_the_readme_shows_every_part() -> None:
    shown = "".join(BLOCKS)
    for part in ("offload_activations", "replace_convs", "sh.open", "RGCNConv", "sh.meter"):
        assert part in shown


@pytest.mark.parametrize("block", BLOCKS, ids=[each.splitlines()[0][:30] for each in BLOCKS])
def test_lines_of_the_readme_run_as_printed(block: str, script: dict[str, Any]) -> None:
    exec(block, script)
    if "loss" in script:
        assert script["model"].conv.weight.grad is not None
    if "features" in script:
        assert script["rows"].tolist() == [[6.0, 7.0], [2.0, 3.0]]
    if "out" in script:
        assert script["out"].shape == (5, 64)
