"""The pool of large tensors: what it hands out, keeps and returns, and what else a process does with memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shorthaul.allocator.tensor_pool as tensor_pool_module
from shorthaul.allocator.tensor_pool import PoolUnavailableError, TensorPool, emit_pool
from shorthaul.errors import NoCompilerError
from tests.allocator import pool_programs

ROOT = Path(__file__).parents[2]


def run_program(*words: str) -> None:
    command = [sys.executable, "-m", "tests.allocator.pool_programs", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", [each.__name__ for each in pool_programs.PROGRAMS])
def test_program(name: str) -> None:
    """Each says in its docstring what it holds."""
    run_program(name, "0")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_drawn_blocks_are_never_handed_out_twice(seed: int) -> None:
    run_program("drawn", str(seed))


def test_the_source_is_of_the_pytorch_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = emit_pool().digest("")
    monkeypatch.setattr(tensor_pool_module.torch, "__version__", "99.0")
    assert emit_pool().digest("") != digest


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise NoCompilerError(("g++",))

    monkeypatch.setattr(tensor_pool_module, "load_kernel", refuse)
    with pytest.raises(PoolUnavailableError, match="g\\+\\+"):
        TensorPool.open()
