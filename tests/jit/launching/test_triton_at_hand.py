"""Triton without its package, its compiler or Python's headers: told, and an error where asked for by name."""

import importlib.util
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shorthaul.errors import MissingExtraError, TritonUnavailableError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.jit.launching import triton_at_hand
from shorthaul.jit.launching.triton_at_hand import (
    NO_COMPILER,
    NO_HEADERS,
    NOT_INSTALLED,
    require_triton,
    why_no_triton,
)
from shorthaul.relational.backends.choice import choose_backend


@pytest.fixture(autouse=True)
def _asked_afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("CC", raising=False)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name if name == "triton" else find(name)
    )
    why_no_triton.cache_clear()
    yield
    why_no_triton.cache_clear()


def _hide_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert why_no_triton() == NOT_INSTALLED
    with pytest.raises(MissingExtraError, match="gathering needs the package `triton`"):
        require_triton("gathering")


def test_a_container_without_a_compiler_falls_back_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _hide_compilers(monkeypatch)
    assert why_no_triton() == NO_COMPILER
    gpu = torch.device("cuda", 0)
    assert choose_backend("auto", gpu) == "reference"
    assert any(each.reason == NO_COMPILER for each in taken_fallbacks())
    with pytest.raises(TritonUnavailableError, match="C compiler"):
        choose_backend("triton", gpu)


def test_cc_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_compilers(monkeypatch)
    monkeypatch.setenv("CC", "icx")
    assert why_no_triton() != NO_COMPILER


def test_headers_are_needed_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "gcc")
    empty: Any = lambda *_: {"include": str(tmp_path)}  # noqa: E731
    monkeypatch.setattr(sysconfig, "get_paths", empty)
    assert why_no_triton() == NO_HEADERS
    (tmp_path / "Python.h").touch()
    why_no_triton.cache_clear()
    assert why_no_triton() is None
    require_triton("gathering")


def test_the_interpreter_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_compilers(monkeypatch)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_at_hand.why_no_triton() is None
