"""The examples in docstrings run and print what they say they print."""

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shorthaul"


def list_modules_with_examples() -> Iterator[str]:
    """Names of modules whose text holds an example; the others need not be imported."""
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " in path.read_text():
            yield ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(
                ".__init__"
            )


def run_examples(module: ModuleType) -> tuple[int, str]:
    """How many examples there were, and what went wrong."""
    words: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=words.append)
    return runner.tries, "".join(words)


@pytest.mark.parametrize("name", [*list_modules_with_examples()])
def test_examples_hold(name: str) -> None:
    _, wrong = run_examples(importlib.import_module(name))
    assert not wrong, wrong


def test_a_wrong_example_is_found() -> None:
    module = ModuleType("module", doc="Words.\n\n>>> 1 + 1\n3\n>>> 2\n2\n")
    count, wrong = run_examples(module)
    assert count == 2
    assert "Expected:\n    3\nGot:\n    2" in wrong
