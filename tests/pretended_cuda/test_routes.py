"""Every route of `routes`, which needs a process of its own: PyTorch finds the devices when it is loaded."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.gpu.suites import FOLDER
from tests.triton_programs import run_interpreted

PROGRAM = "tests.pretended_cuda.routes"
SOURCES = {
    Path(__file__).with_name("routes.py"): "route",
    **dict.fromkeys(sorted(FOLDER.glob("[a-z]*.py")), "body"),
}


def _names() -> list[str]:
    return [
        node.name
        for source, mark in SOURCES.items()
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Name) and each.id == mark for each in node.decorator_list)
    ]


@functools.cache
def _problems() -> dict[str, str]:
    return {each["name"]: each["problem"] for each in run_interpreted(PROGRAM, 0, 0)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", _names())
def test_route(name: str) -> None:
    assert _problems()[name] == ""
