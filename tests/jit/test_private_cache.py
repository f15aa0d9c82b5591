"""A cache directory that cannot be written to costs compiles, and never the work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shorthaul.errors import CompileError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.jit import KernelCache, Toolchain
from shorthaul.jit.private_cache import why_unwritable
from shorthaul.jit.python_module import load_module
from shorthaul.jit.toolchain import Processor
from shorthaul.settings import settings
from tests.jit.sources import SCALE, write_compiler


def make_toolchain(directory: Path, *lines: str) -> Toolchain:
    script = write_compiler(directory / "c++", *lines)
    return Toolchain((str(script),), "fake++ 1.0", Processor("any", ()))


@pytest.fixture
def file_in_the_way(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("not a directory")
    return path / "within" / "cache"


def test_kernels_are_built_in_a_private_directory_and_that_is_said(
    file_in_the_way: Path, tmp_path: Path
) -> None:
    toolchain = make_toolchain(tmp_path / "compiler", "echo object > $output")
    entry = KernelCache(file_in_the_way).find_or_build(SCALE, toolchain)
    assert entry.library.read_text() == "object\n"
    assert entry.directory.stat().st_mode & 0o077 == 0
    assert any(str(file_in_the_way) in each.what for each in taken_fallbacks())
    assert KernelCache(file_in_the_way).find_or_build(SCALE, toolchain).sha256 == entry.sha256


def test_a_full_disk_is_known_by_what_the_compiler_says(tmp_path: Path) -> None:
    # Full in the cache, and not where the private directory is.
    cache = tmp_path / "cache"
    toolchain = make_toolchain(
        tmp_path / "compiler",
        f'case "$PWD$output" in {cache}*) echo "error: No space left on device" >&2; exit 1;; esac',
        "echo object > $output",
    )
    assert KernelCache(cache).find_or_build(SCALE, toolchain).library.read_text() == "object\n"


def test_generated_modules_go_there_too(file_in_the_way: Path) -> None:
    with settings.override(cache_directory=file_in_the_way):
        assert load_module("private_answer", "ANSWER = 43\n").ANSWER == 43


def test_other_errors_are_no_reason() -> None:
    rejected = CompileError("g++", "kernel", Path("k.cpp"), Path("c.sh"), "error: expected ;")
    assert why_unwritable(rejected) is None
    assert why_unwritable(OSError(errno.EIO, "Input/output error")) is None
    for code in (errno.EROFS, errno.EDQUOT):
        assert why_unwritable(OSError(code, os.strerror(code))) == os.strerror(code)
