"""The set-up: what `make` would do on a fresh machine, and what it says when something is missing."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The programs themselves, because the tests take away the search path.
SHELL = "/bin/sh"
MAKE = shutil.which("make")

GOOD_PYTHON = "#!/bin/sh\nexit 0\n"
OLD_PYTHON = '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.1"\nexit 1\n'
DEBIAN_PYTHON = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\n'


class Computer:
    """A search path and an environment directory that hold what a test puts there."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "programs"
        self.environment = directory / "environment"
        self.programs.mkdir()

    def install(self, name: str, text: str = GOOD_PYTHON) -> None:
        _write_program(self.programs / name, text)

    def make_environment(self, python: str = GOOD_PYTHON) -> None:
        (self.environment / "bin").mkdir(parents=True)
        (self.environment / "bin" / "pip").touch()
        _write_program(self.environment / "bin" / "python", python)

    def check(self, **environment: str) -> tuple[int, str]:
        """The status and the words of the check."""
        done = subprocess.run(
            [SHELL, ROOT / "setup" / "check.sh", "python3", self.environment],
            env={"PATH": str(self.programs), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == ""
        return done.returncode, done.stderr


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_nothing_is_said_where_nothing_is_missing(computer: Computer) -> None:
    computer.install("python3")
    computer.install("g++")
    assert computer.check() == (0, "")
    computer.make_environment()
    assert computer.check() == (0, "")


def test_no_python(computer: Computer) -> None:
    computer.install("g++")
    assert computer.check() == (
        1,
        "shorthaul: no python3 on PATH; install Python 3.10 to 3.13, or name one: "
        "make PYTHON=python3.12\n",
    )


def test_an_old_python(computer: Computer) -> None:
    computer.install("g++")
    computer.install("python3", OLD_PYTHON)
    assert computer.check() == (
        1,
        "shorthaul: python3 is Python 3.8.1, but Python 3.10 to 3.13 is needed; name one: "
        "make PYTHON=python3.12\n",
    )


def test_a_python_without_venv(computer: Computer) -> None:
    computer.install("g++")
    computer.install("python3", DEBIAN_PYTHON)
    assert computer.check() == (
        1,
        "shorthaul: python3 has no venv module; install it (Debian, Ubuntu: apt-get install "
        "python3-venv)\n",
    )


def test_an_environment_whose_python_is_gone(computer: Computer) -> None:
    computer.install("g++")
    computer.make_environment(python="#!/nowhere/python\n")
    status, words = computer.check()
    assert status == 1
    assert words == (
        f"shorthaul: {computer.environment} no longer runs (was its Python removed?); delete it "
        f"and run again: rm -rf {computer.environment}\n"
    )


def test_no_compiler(computer: Computer) -> None:
    computer.install("python3")
    assert computer.check() == (
        1,
        "shorthaul: no C++ compiler; install one (Debian, Ubuntu: apt-get install g++) or name "
        "yours: make CXX=/path/to/g++\n",
    )


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_either_compiler_will_do(computer: Computer, compiler: str) -> None:
    computer.install("python3")
    computer.install(compiler)
    assert computer.check() == (0, "")


def test_a_compiler_from_pip_will_do(computer: Computer) -> None:
    computer.make_environment()
    (computer.environment / "lib/python3.12/site-packages/ziglang").mkdir(parents=True)
    assert computer.check() == (0, "")


def test_a_compiler_asked_for_by_name_is_not_replaced(computer: Computer) -> None:
    computer.install("python3")
    computer.install("g++")
    assert computer.check(CXX="icpx -O2") == (
        1,
        "shorthaul: CXX names icpx -O2, which is not found; correct it, or unset it to use g++ or "
        "clang++\n",
    )
    computer.install("icpx")
    assert computer.check(CXX="icpx -O2") == (0, "")


needs_make = pytest.mark.skipif(MAKE is None, reason="there is no make here")


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Without what an outer `make test` hands down to its children.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name
        not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS", "CXX", "WORKERS")
    }
    return subprocess.run(
        [str(MAKE), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@needs_make
@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_fresh_machine_gets_torch_first_and_then_the_package(target: str, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    planned = _make("--dry-run", target, f"VENV={environment}").stdout
    steps = [
        r"sh setup/check.sh",
        r"-m venv",
        r"pip install .*--requirement setup/torch\.txt",
        r"pip install .*--constraint setup/torch\.txt .*--editable '\.\[dev\]'",
        r"touch .*/\.ready",
        r"shorthaul demo" if target == "demo" else r"ruff check",
    ]
    places = [re.search(step, planned) for step in steps]
    assert all(places), planned
    starts = [place.start() for place in places if place]
    assert starts == sorted(starts), planned


@needs_make
def test_the_second_time_nothing_is_installed(computer: Computer) -> None:
    computer.make_environment()
    ready = computer.environment / ".ready"
    ready.touch()
    planned = _make("--dry-run", "test", f"VENV={computer.environment}").stdout
    assert "pip install" not in planned
    assert "-m pytest --numprocesses auto --maxprocesses 4" in planned.strip().splitlines()[-1]
    os.utime(ready, (0, 0))  # older than pyproject.toml: something changed
    planned = _make("--dry-run", "test", f"VENV={computer.environment}").stdout
    assert planned.count("pip install") == 2


@needs_make
def test_make_says_what_is_missing_in_one_line(tmp_path: Path) -> None:
    done = _make("test", f"VENV={tmp_path / 'environment'}", "PYTHON=python0")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1
    assert said[0].startswith("shorthaul: no python0 on PATH")
    assert not (tmp_path / "environment").exists()


@needs_make
def test_help_names_every_target() -> None:
    told = _make().stdout
    for target in [
        "demo",
        "test",
        "test-all",
        "bench",
        "results",
        "peers",
        "lint",
        "format",
        "clean",
    ]:
        assert re.search(rf"^  make {target} ", told, re.MULTILINE), target


def find_torch_pins(root: Path) -> list[str]:
    """The files of the set-up that name an exact version of torch."""
    files = [root / "Makefile", root / "pyproject.toml", *sorted((root / "setup").iterdir())]
    return [
        str(path.relative_to(root))
        for path in files
        if re.search(r"\btorch\s*==", path.read_text())
    ]


def test_torch_is_pinned_in_one_place() -> None:
    assert find_torch_pins(ROOT) == ["setup/torch.txt"]


def test_a_second_pin_is_found(tmp_path: Path) -> None:
    (tmp_path / "setup").mkdir()
    (tmp_path / "setup" / "torch.txt").write_text("torch==2.13.0\n")
    (tmp_path / "pyproject.toml").write_text('dependencies = ["torch>=2.6"]\n')
    (tmp_path / "Makefile").write_text("\tpip install torch==2.12.0\n")
    assert find_torch_pins(tmp_path) == ["Makefile", "setup/torch.txt"]


def test_continuous_integration_runs_the_tests_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    commands = [
        line
        for line in script.read_text().splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["exec make test"]
