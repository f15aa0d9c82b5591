"""Every test of the jit compiles into a cache of its own run, never into the user's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shorthaul.settings import Settings, settings


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shorthaul") / "cache"


@pytest.fixture(autouse=True)
def _own_settings(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for each in Settings.all():
        monkeypatch.delenv(each.environment, raising=False)
    monkeypatch.setenv("SHORTHAUL_CACHE", str(session_cache))  # for processes started here
    with settings.override(cache_directory=session_cache):
        yield


@pytest.fixture
def set_threads() -> Iterator[None]:
    """Restore PyTorch's thread count after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
