"""`shorthaul explain`: objects by name, kernels by digest, and errors that say which part is wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = '''\
class Layer:
    """Something with stages."""

    def __init__(self, name):
        self.name = name

    def explain(self):
        return f"{self.name}: stage one, stage two"


layer = Layer("attention")


class holder:
    inner = Layer("inner")


def plain():
    return layer
'''


@pytest.fixture(autouse=True)
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "my_layers.py").write_text(LAYERS)
    (directory / "fails.py").write_text("ready = True\nready.forever\n")
    (directory / "needs.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.chdir(directory)
    before, modules = list(sys.path), set(sys.modules)
    yield directory
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if name in ("my_layers", "fails", "needs"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("my_layers:layer", "attention: stage one, stage two\n"),
        ("my_layers:holder.inner", "inner: stage one, stage two\n"),
    ],
)
def test_an_object_of_the_current_directory(shorthaul, subject: str, text: str) -> None:
    shown = shorthaul("explain", subject)
    assert (shown.exit_code, shown.output) == (0, text)


@pytest.mark.parametrize("by", ["name", "digest"])
def test_a_kernel_of_the_cache(shorthaul, two_answers, by: str) -> None:
    first, second = two_answers
    shown = shorthaul("explain", "answer" if by == "name" else first.digest[:10]).output
    assert f"answer_{first.digest[:8]}\nin {first.directory}, compiled in " in shown
    assert "int64_t answer() { return 1; }" in shown
    assert "kernel.cpp -o kernel.so" in shown
    assert (second.digest[:8] in shown) == (by == "name")


@pytest.mark.parametrize(
    ("subject", "exit_code", "words"),
    [
        ("my_layers:", 2, "expected MODULE:OBJECT such as my_layers:layer, got 'my_layers:'."),
        ("my_layers:layr", 1, "my_layers:layr: there is no 'layr'. Did you mean layer"),
        ("my_layer:layer", 1, "there is no module 'my_layer', neither installed nor in "),
        ("fails:x", 1, "importing fails failed: AttributeError: 'bool' object has no attribute"),
        ("fails:x", 1, "fails.py, line 2: ready.forever"),
        ("needs:x", 1, "importing needs failed: ModuleNotFoundError: No module named 'nowhere_to"),
        ("my_layers:plain", 1, "cannot explain <function plain at "),
        ("my_layers:Layer", 1, "cannot explain <class 'my_layers.Layer'>"),
        ("anser", 1, "It is empty. `shorthaul cache list` shows their digests."),
    ],
)
def test_errors_say_which_part_is_wrong(
    shorthaul, subject: str, exit_code: int, words: str
) -> None:
    shown = shorthaul("explain", subject)
    assert shown.exit_code == exit_code
    assert words in shown.stderr
