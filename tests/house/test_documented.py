"""Every error and every setting is documented, in the code and in docs."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.rendering.reference import list_errors
from shorthaul.errors import ShorthaulError
from shorthaul.settings import Setting, Settings

DOCS = Path(__file__).parents[2] / "docs"


def find_undocumented_errors(errors: Sequence[type[ShorthaulError]], page: Path) -> list[str]:
    """Error classes without a docstring of their own, or without a row on `page`."""
    text = page.read_text()
    problems = []
    for each in errors:
        if not vars(each).get("__doc__"):
            problems.append(f"{each.__name__} does not say when it is raised")
        if f"| `{each.__name__}` |" not in text:
            problems.append(f"{each.__name__} has no row in {page.name}")
    return problems


def find_undocumented_settings(settings: Sequence[Setting[object]], page: Path) -> list[str]:
    """Settings without words on their meaning, or without a row on `page`."""
    text = page.read_text()
    problems = []
    for each in settings:
        if not each.meaning or not each.expected:
            problems.append(f"{each.name} does not say what it means and what it takes")
        if f"| `{each.name}` | `{each.environment}` |" not in text:
            problems.append(f"{each.name} has no row in {page.name}")
    return problems


def test_every_error_is_documented() -> None:
    assert find_undocumented_errors(list_errors(), DOCS / "errors.md") == [], "run `make results`"


def test_every_setting_is_documented() -> None:
    found = find_undocumented_settings(Settings.all(), DOCS / "settings.md")
    assert found == [], "run `make results`"


def test_the_list_of_errors_is_the_module() -> None:
    from shorthaul import errors

    classes = [each for each in vars(errors).values() if inspect.isclass(each)]
    own = {each for each in classes if each.__module__.startswith(errors.__name__)}
    assert own == set(list_errors()), "each class in errors inherits ShorthaulError"


class _WordlessError(ShorthaulError):
    pass


class _ListedError(ShorthaulError):
    """Raised never."""


def test_an_undocumented_error_is_found(tmp_path: Path) -> None:
    page = tmp_path / "errors.md"
    page.write_text("| `_ListedError` | |\n")
    assert find_undocumented_errors([_WordlessError, _ListedError], page) == [
        "_WordlessError does not say when it is raised",
        "_WordlessError has no row in errors.md",
    ]


@pytest.mark.parametrize(
    ("meaning", "row", "problem"),
    [
        (
            "",
            "| `speed` | `SHORTHAUL_SPEED` |",
            "speed does not say what it means and what it takes",
        ),
        ("how fast", "| `speed` | `SHORTHAUL_RATE` |", "speed has no row in settings.md"),
        ("how fast", "| `speed` | `SHORTHAUL_SPEED` |", None),
    ],
)
def test_an_undocumented_setting_is_found(
    tmp_path: Path, meaning: str, row: str, problem: str | None
) -> None:
    page = tmp_path / "settings.md"
    page.write_text(row)
    setting: Setting[object] = Setting("SHORTHAUL_SPEED", lambda: 1, str, "a number", meaning)
    setting.__set_name__(Settings, "speed")
    assert find_undocumented_settings([setting], page) == ([problem] if problem else [])
