"""What pip installs: a wheel with all that the package reads, and metadata that claims only what was run."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from hatchling import build

ROOT = Path(__file__).parents[2]
# The versions of Python that ran the tests.
RUN_WITH = {"3.11"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder / build.build_wheel(str(folder))


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "shorthaul").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wanted <= names
    assert "shorthaul/py.typed" in names
    assert any(each.endswith("licenses/LICENSE") for each in names)


def test_only_versions_that_ran_are_claimed(wheel: Path) -> None:
    classifiers = read_metadata(wheel).get_all("Classifier", [])
    prefix = "Programming Language :: Python :: "
    claimed = {each.removeprefix(prefix) for each in classifiers if each.startswith(prefix)}
    assert claimed == RUN_WITH


def test_every_extra_that_an_error_names_exists(wheel: Path) -> None:
    extras = set(read_metadata(wheel).get_all("Provides-Extra", []))
    text = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r'MissingExtraError\(\s*"[^"]+",\s*"([^"]+)"', text))
    assert len(named) >= 3
    assert named <= extras


def test_the_source_archive_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        names = {each.partition("/")[2] for each in archive.getnames()}
    for wanted in ("Makefile", "setup/torch.txt", "mkdocs.yml", "CITATION.cff", ".ci/run"):
        assert wanted in names
    for folder in ("src", "tests", "benchmarks", "docs", "examples"):
        assert any(each.startswith(f"{folder}/") for each in names)


# A program that imports every public name, and ends with an error if that starts, opens or loads something.
IMPORTS_QUIETLY = """\
import os, sys, threading
import shorthaul as sh
assert sh.__file__.startswith(sys.argv[1]), sh.__file__
assert 'torch' not in sys.modules and 'numpy' not in sys.modules
import torch
threads = len(os.listdir('/proc/self/task'))
for name in sh.__all__: getattr(sh, name)
assert len(os.listdir('/proc/self/task')) == threads, 'a thread was started'
assert threading.active_count() == 1
assert not os.path.exists(os.environ['SHORTHAUL_CACHE']), 'the cache was opened'
maps = open('/proc/self/maps').read()
assert 'kernel.so' not in maps, 'a kernel was loaded'
"""


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(
        [str(each) for each in words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_wheel_starts_nothing_at_import(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    run(
        *(sys.executable, "-c", IMPORTS_QUIETLY, tmp_path),
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path / "site"),
        SHORTHAUL_CACHE=str(tmp_path / "cache"),
    )


def test_the_command_line_of_the_wheel_answers(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        (name,) = (each for each in archive.namelist() if each.endswith("entry_points.txt"))
        assert "shorthaul = shorthaul.cli:main" in archive.read(name).decode()
    said = run(
        *(sys.executable, "-m", "shorthaul", "--version"),
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path / "site"),
    )
    assert "shorthaul" in said


@pytest.mark.slow
def test_what_is_built_can_be_published_and_installed(tmp_path: Path) -> None:
    """The way to a user: source archive, wheel made from it, an environment that has only this wheel."""
    pytest.importorskip("build")
    pytest.importorskip("twine")
    python = sys.executable
    run(python, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    source, wheel = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix)
    assert (source.suffix, wheel.suffix) == (".gz", ".whl")
    run(python, "-m", "twine", "check", "--strict", source, wheel, cwd=tmp_path)

    environment = tmp_path / "environment"
    run(python, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    pip = (python, "-m", "pip", "--python", environment / "bin" / "python")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # What it depends on, torch above all, is read from where it is installed already.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "needs.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    clean = {"PYTHONPATH": "", "SHORTHAUL_CACHE": str(tmp_path / "cache")}
    version = run(environment / "bin" / "shorthaul", "--version", cwd=tmp_path, **clean)
    assert version.startswith(f"shorthaul {read_metadata(wheel)['Version']}, torch ")
    found = run(
        *(environment / "bin" / "python", "-c", IMPORTS_QUIETLY, environment), cwd=tmp_path, **clean
    )
    assert found == ""
    checked = subprocess.run([*map(str, pip), "check"], capture_output=True, text=True, check=False)
    assert not re.search(r"^shorthaul ", checked.stdout, re.M), checked.stdout
    assert re.search(r"^(No broken requirements|\S+ \S+ (has|requires) )", checked.stdout, re.M)
