"""Which files are data, in which order, and what is said where there are none."""

import sys
from pathlib import Path

import pytest

from shorthaul.datasets.standard_library import (
    MINIMUM_FILES,
    SKIPPED,
    choose_files,
    draw,
    fingerprint,
    library_directory,
    list_library,
)
from shorthaul.errors import DatasetError
from shorthaul.meter import meter

STANDARD_NAMES = sorted(sys.stdlib_module_names - SKIPPED)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small library in the usual layout, with everything around it that does not count."""
    for name in STANDARD_NAMES[:MINIMUM_FILES]:
        (tmp_path / f"{name}.py").write_text("answer = 42\n")
    for ignored in (
        "site-packages/numpy.py",
        "test/test_os.py",
        "idlelib/editor.py",
        "json/tests/test_json.py",
        "json/__pycache__/decoder.py",
        "json/decoder.pyc",
        "sitecustomize.py",
        "_sysconfigdata__linux.py",
        "lib-dynload/readme.py",
    ):
        path = tmp_path / ignored
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('never read')\n")
    for kept in ("json/__init__.py", "json/decoder.py"):
        (tmp_path / kept).write_text("import json\n")
    return tmp_path


def test_only_the_library_itself_is_listed(library: Path) -> None:
    files = list_library(library)
    expected = sorted({*STANDARD_NAMES[:MINIMUM_FILES], "json", "json.decoder"})
    assert [each.name for each in files] == expected
    packages = [each.name for each in files if each.is_package]
    assert packages == ["json"]


def test_the_running_python_has_a_library() -> None:
    names = {each.name for each in list_library(library_directory())}
    assert {"os", "asyncio", "asyncio.events", "json.decoder"} <= names
    assert not any(name.split(".")[0] in SKIPPED for name in names)


@pytest.mark.parametrize("name", ["missing", "python311.zip", "stripped"])
def test_no_source_says_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "python311.zip").write_bytes(b"PK")
    stripped = tmp_path / "stripped"
    stripped.mkdir()
    for module in STANDARD_NAMES:
        (stripped / f"{module}.pyc").write_bytes(b"")
    (stripped / "os.py").write_text("")
    with pytest.raises(DatasetError) as caught:
        list_library(tmp_path / name)
    text = str(caught.value)
    assert f"but found {int(name == 'stripped')} of its .py files there" in text
    assert str(tmp_path / name) in text
    assert "Use a Python that comes with its source" in text


def test_the_fingerprint_follows_the_listing(library: Path) -> None:
    before = fingerprint(list_library(library))
    assert fingerprint(list_library(library)) == before
    (library / "json" / "encoder.py").write_text("")
    added = fingerprint(list_library(library))
    (library / "json" / "encoder.py").write_text("longer = True\n")
    assert len({before, added, fingerprint(list_library(library))}) == 3


def test_draws_are_the_same_on_every_machine() -> None:
    assert draw("json.decoder", "split") == 0.6164685764844577
    assert draw("json.decoder", "limit") != draw("json.decoder", "split")
    drawn = [draw(str(number), "split") for number in range(2000)]
    assert 0 <= min(drawn) < 0.01
    assert 0.99 < max(drawn) < 1
    assert 0.45 < sum(drawn) / len(drawn) < 0.55


def test_a_smaller_choice_lies_within_a_larger(library: Path) -> None:
    files = list_library(library)
    few, more = choose_files(files, 10), choose_files(files, 40)
    assert len(few) == 10
    assert set(few) < set(more) < set(files)
    assert [each.name for each in more] == sorted(each.name for each in more)
    assert choose_files(files, None) == choose_files(files, 10_000) == files


def test_reading_is_metered_and_a_vanished_file_is_named(library: Path) -> None:
    file = list_library(library)[0]
    with meter() as m:
        assert file.read() == b"answer = 42\n"
    assert m.bytes_between("disk", "memory", "library source") == 12
    file.path.unlink()
    with pytest.raises(DatasetError, match=file.path.name):
        file.read()
