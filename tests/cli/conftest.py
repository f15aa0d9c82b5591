"""Every test of the command line has a cache and a scratch directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shorthaul import fallbacks
from shorthaul.cli.program import program
from shorthaul.jit import CacheEntry, CppSource, Function, KernelCache, find_toolchain
from shorthaul.settings import Settings, settings


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for each in Settings.all():
        monkeypatch.delenv(each.environment, raising=False)
    # What other tests of this process fell back to is not what `doctor` shall find.
    monkeypatch.setattr(fallbacks, "_taken", {})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("SHORTHAUL_CACHE", str(tmp_path / "cache"))  # for processes started here
    monkeypatch.setenv("SHORTHAUL_SCRATCH", str(scratch))
    with settings.override(cache_directory=tmp_path / "cache", scratch_directory=scratch):
        yield tmp_path / "cache"


class Shell:
    """Runs `shorthaul <words>` in this process."""

    def __call__(self, *words: str, typed: str | None = None, **environment: str) -> Result:
        return CliRunner().invoke(
            program, words, input=typed, env=dict(environment), prog_name="shorthaul"
        )


@pytest.fixture
def shorthaul() -> Shell:
    return Shell()


def build_kernel(name: str, number: int = 0) -> CacheEntry:
    """A kernel of that name in the cache; another number makes another digest."""
    text = f"int64_t answer() {{ return {number}; }}"
    source = CppSource(name, text, (Function("answer", (), returns="int64"),))
    return KernelCache().find_or_build(source, find_toolchain())


@pytest.fixture
def two_answers() -> tuple[CacheEntry, CacheEntry]:
    return build_kernel("answer", 1), build_kernel("answer", 2)
