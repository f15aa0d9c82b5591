"""One cache for all data set tests of a run, away from the user's."""

from collections.abc import Iterator

import pytest
import torch

from shorthaul.datasets import PythonGraph, python_graph
from shorthaul.settings import settings


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with settings.override(cache_directory=tmp_path_factory.mktemp("cache"), progress="off"):
        yield


@pytest.fixture(scope="session")
def graph(_cache_of_this_run: None) -> PythonGraph:
    """A quarter of the library: large enough to learn from, built in two seconds."""
    return python_graph(limit_modules=100)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small operations on one thread: quick also where other programs keep the cores busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
