"""Generated modules lie in files of the cache, whole and this user's alone."""

import inspect
import stat

import pytest

from shorthaul.errors import CacheOwnershipError
from shorthaul.jit import python_module
from shorthaul.jit.python_module import load_module
from shorthaul.settings import settings

TEXT = "def answer():\n    return 42\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(python_module, "_loaded", {})
    with settings.override(cache_directory=tmp_path / "cache"):
        yield


def test_a_function_knows_its_source():
    module = load_module("small", TEXT)
    assert module.answer() == 42
    assert inspect.getsource(module.answer) == TEXT
    assert load_module("small", TEXT) is module


def test_other_text_is_another_module():
    assert load_module("small", TEXT.replace("42", "43")).answer() == 43
    assert load_module("small", TEXT).answer() == 42


def test_a_file_that_was_changed_is_written_again(monkeypatch):
    path = load_module("small", TEXT).__file__
    with open(path, "w") as file:
        file.write("def answer():\n    return 'changed'\n")
    monkeypatch.setattr(python_module, "_loaded", {})
    assert load_module("small", TEXT).answer() == 42


def test_a_directory_that_others_may_write_to_is_refused():
    directory = settings.cache_directory / "modules"
    load_module("small", TEXT)
    directory.chmod(directory.stat().st_mode | stat.S_IWOTH)
    with pytest.raises(CacheOwnershipError):
        load_module("other", TEXT)
