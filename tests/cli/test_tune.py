"""`shorthaul tune`: the model by name, its sizes, and errors that say what is wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shorthaul.settings import settings

MODELS = """\
from torch import nn

model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU())
plain = nn.Linear(2, 2)
number = 3


def make():
    return model
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_models", None)


@pytest.mark.parametrize("name", ["model", "make"])
def test_a_model_and_a_function_that_makes_one(shorthaul, name: str) -> None:
    with settings.override(autotune="off", kernels="torch"):  # measures and compiles nothing
        shown = shorthaul("tune", f"my_models:{name}", "--input", "1x2x8x8", "--threads", "1")
    assert shown.exit_code == 0, shown.stderr
    assert "convolutions" in shown.output
    from torch import nn

    assert type(sys.modules["my_models"].model[0]) is nn.Conv2d  # put back


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (("my_models:number", "--input", "1x2"), 1, "my_models:number is int; expected an nn.Mod"),
        (("my_models:plain", "--input", "1x2"), 1, "my_models:plain has no convolution"),
        (("my_models:model", "--input", "1xb"), 2, "expected positive sizes with x in between"),
        (("my_models:model",), 2, "Missing option '--input'"),
    ],
)
def test_errors(shorthaul, words: tuple[str, ...], exit_code: int, message: str) -> None:
    shown = shorthaul("tune", *words)
    assert shown.exit_code == exit_code
    assert message in shown.stderr
