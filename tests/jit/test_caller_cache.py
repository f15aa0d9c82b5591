"""Compiled callers: found by interpreter and text, never taken when damaged."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from shorthaul.jit import caller_cache
from shorthaul.jit.caller_cache import load_callers

TEXTS = ["def caller(x):\n    return x + 1\n", "def caller(x):\n    return x * 2\n"]


def call(code: CodeType, value: int) -> int:
    scope: dict[str, Any] = {}
    exec(code, scope)
    result: int = scope["caller"](value)
    return result


@pytest.fixture
def compiled_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were compiled since."""
    texts: list[str] = []
    real: Callable[..., Any] = builtins.compile

    def record(text: str, *arguments: Any) -> Any:
        texts.append(text)
        return real(text, *arguments)

    monkeypatch.setattr(caller_cache, "compile", record, raising=False)
    return texts


def test_every_text_has_its_code_and_is_compiled_once(
    tmp_path: Path, compiled_texts: list[str]
) -> None:
    for _ in range(2):
        first, second, again = load_callers(tmp_path, [*TEXTS, TEXTS[0]])
        assert [call(each, 10) for each in (first, second, again)] == [11, 20, 11]
    assert compiled_texts == TEXTS
    assert len(list(tmp_path.iterdir())) == 1


def test_another_text_has_a_file_of_its_own(tmp_path: Path, compiled_texts: list[str]) -> None:
    load_callers(tmp_path, TEXTS[:1])
    (other,) = load_callers(tmp_path, TEXTS[1:])
    assert call(other, 10) == 20
    assert compiled_texts == TEXTS
    assert len(list(tmp_path.iterdir())) == 2


def test_another_interpreter_has_a_file_of_its_own(
    tmp_path: Path, compiled_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_callers(tmp_path, TEXTS[:1])
    monkeypatch.setattr(caller_cache.sys.implementation, "cache_tag", "cpython-399")
    load_callers(tmp_path, TEXTS[:1])
    assert compiled_texts == [TEXTS[0]] * 2


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_a_damaged_file_is_compiled_again(
    tmp_path: Path, compiled_texts: list[str], damage: str
) -> None:
    load_callers(tmp_path, TEXTS)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"cut": content[:-9], "changed": changed, "emptied": b""}[damage])
    first, second = load_callers(tmp_path, TEXTS)
    assert (call(first, 10), call(second, 10)) == (11, 20)
    assert len(compiled_texts) == 4
    assert path.read_bytes() == content


def test_a_directory_that_is_gone_costs_the_compiling_alone(tmp_path: Path) -> None:
    first, second = load_callers(tmp_path / "removed", TEXTS)
    assert (call(first, 10), call(second, 10)) == (11, 20)
    assert not list(tmp_path.iterdir())


def test_what_is_not_written_whole_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    assert call(load_callers(tmp_path, TEXTS)[0], 10) == 11
    assert not list(tmp_path.iterdir())
