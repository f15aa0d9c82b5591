"""Finding a compiler: what is looked for, in which order, and what is said when it is not there."""

import importlib.util
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shorthaul.errors import NoCompilerError
from shorthaul.jit import KernelCache, find_toolchain
from shorthaul.jit.toolchain import (
    FLAGS,
    Processor,
    Toolchain,
    read_processor,
    run_compiler,
)
from shorthaul.settings import settings
from tests.jit.sources import SCALE, write_compiler, write_script


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is the whole PATH; no CXX, and no ziglang even where it is installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    return programs


@pytest.fixture
def fake_zig(empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `ziglang` that tells a version and the arguments that it was started with."""
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys\nprint('clang version 18.1.6, started as', *sys.argv[1:])\n"
    )
    monkeypatch.delitem(sys.modules, "ziglang")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return package


def test_gxx_comes_first(empty_path: Path) -> None:
    gxx = write_compiler(empty_path / "g++", version="g++ (Some) 12.2.0")
    write_compiler(empty_path / "clang++")
    found = find_toolchain()
    assert found == Toolchain((str(gxx),), "g++ (Some) 12.2.0", read_processor())


def test_clang_comes_second(empty_path: Path, fake_zig: Path) -> None:
    clang = write_compiler(empty_path / "clang++", version="clang version 16.0.6")
    assert find_toolchain().command == (str(clang),)
    assert find_toolchain().version == "clang version 16.0.6"


def test_ziglang_comes_last(fake_zig: Path) -> None:
    found = find_toolchain()
    assert found.command == (sys.executable, "-m", "ziglang", "c++")
    assert found.version == "clang version 18.1.6, started as c++ --version"


def test_a_gxx_that_does_not_work_is_passed_over(empty_path: Path) -> None:
    write_script(empty_path / "g++", "exit 1")
    clang = write_compiler(empty_path / "clang++")
    assert find_toolchain().command == (str(clang),)


def test_no_compiler_at_all_names_what_was_looked_for(empty_path: Path) -> None:
    with pytest.raises(NoCompilerError) as caught:
        find_toolchain()
    assert str(caught.value) == (
        "no C++ compiler was found (looked for: g++, clang++, ziglang).\n"
        "  Install g++ or clang++ (Debian: apt-get install g++), set CXX, or\n"
        "  pip install 'shorthaul[compiler]'; `shorthaul doctor` shows what is found."
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_script(path, "exit 3"),
        lambda path: write_script(path, "exit 0"),  # says nothing
        lambda path: (path.write_bytes(b"\x7fnot a program"), path.chmod(0o755)),
    ],
    ids=["fails", "silent", "not a program"],
)
def test_a_compiler_that_cannot_be_asked_is_named(
    empty_path: Path, write: Callable[[Path], object]
) -> None:
    write(empty_path / "g++")
    with pytest.raises(NoCompilerError, match=r"g\+\+ \(found, but `--version` fails\), clang"):
        find_toolchain()


def test_a_compiler_that_does_not_answer_is_named(empty_path: Path) -> None:
    write_script(empty_path / "g++", "exec /bin/sleep 60")
    with (
        settings.override(compile_limit_seconds=0.2),
        pytest.raises(NoCompilerError, match=r"g\+\+ \(found, but"),
    ):
        find_toolchain()


def test_cxx_goes_before_everything(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compiler(empty_path / "g++")
    mine = write_compiler(empty_path / "my compiler", version="mine 1")
    monkeypatch.setenv("CXX", f"'{mine}'")
    assert find_toolchain().command == (str(mine),)
    assert find_toolchain().version == "mine 1"


def test_cxx_may_have_arguments(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(empty_path / "ccache", 'shift; echo "ccache of $*"')
    monkeypatch.setenv("CXX", "ccache g++ -m64 '-DNAME=two words'")
    found = find_toolchain()
    assert found.command == (str(empty_path / "ccache"), "g++", "-m64", "-DNAME=two words")
    assert found.version == "ccache of -m64 -DNAME=two words --version"


def test_a_relative_cxx_still_starts_in_another_directory(
    empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_compiler(tmp_path / "tools" / "c++")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "tools/c++")
    assert find_toolchain().command == (str(tmp_path / "tools" / "c++"),)


@pytest.mark.parametrize("cxx", ["no-such-compiler -O2", "'unfinished"])
def test_cxx_that_is_absent_is_an_error_and_never_replaced(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch, cxx: str
) -> None:
    write_compiler(empty_path / "g++")
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(NoCompilerError) as caught:
        find_toolchain()
    assert f"(looked for: CXX={cxx})" in str(caught.value)


def test_an_empty_cxx_is_no_cxx(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gxx = write_compiler(empty_path / "g++")
    monkeypatch.setenv("CXX", "  ")
    assert find_toolchain().command == (str(gxx),)


def test_a_compiler_that_appears_later_is_found(empty_path: Path) -> None:
    with pytest.raises(NoCompilerError):
        find_toolchain()
    gxx = write_compiler(empty_path / "g++")
    assert find_toolchain().command == (str(gxx),)


def test_the_command_has_the_flags_of_the_source_after_it() -> None:
    toolchain = Toolchain(("/bin/c++", "-m64"), "1", Processor("any", ()))
    assert toolchain.compile_command("kernel.cpp", "kernel.so", ("-lm",)) == (
        *("/bin/c++", "-m64", *FLAGS, "-Iinclude"),
        *("kernel.cpp", "-lm", "-o", "kernel.so"),
    )


def test_the_flags_are_fast_and_keep_the_arithmetic() -> None:
    assert {"-O3", "-march=native"} <= set(FLAGS)
    assert not {"-ffast-math", "-Ofast", "-fopenmp", "-fassociative-math"} & set(FLAGS)


def test_the_processor_is_read_once_and_has_features() -> None:
    assert read_processor() is read_processor()
    assert read_processor().features == tuple(sorted(read_processor().features))
    assert all(feature in str(read_processor()) for feature in read_processor().features)
    assert read_processor().model in str(read_processor())


def test_a_compiler_runs_beside_its_log_in_english(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    script = write_script(tmp_path / "compiler", "pwd", 'echo "$LC_ALL"', "cat", "exit 7")
    work = tmp_path / "work"
    work.mkdir()
    assert run_compiler([str(script)], work / "log") == 7
    assert (work / "log").read_text() == f"{work}\nC\n"


def test_a_compiler_that_hangs_is_stopped_with_everything_it_started(tmp_path: Path) -> None:
    # The driver waits for a child that holds the output open, as g++ waits for cc1plus.
    script = write_script(
        tmp_path / "c++", "/bin/sleep 600 &", f"echo $! > {tmp_path}/child", "wait"
    )
    with settings.override(compile_limit_seconds=2):
        assert run_compiler([str(script)], tmp_path / "log") == -signal.SIGKILL
    assert (tmp_path / "log").read_text() == "error: stopped after 2 s\n"
    while is_running(int((tmp_path / "child").read_text())):  # until the test's time is over
        threading.Event().wait(0.01)


def is_running(process: int) -> bool:
    """Whether the process is there and not a zombie that nobody has collected yet."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_a_compiler_that_has_gone_is_an_error_by_name(tmp_path: Path) -> None:
    with pytest.raises(NoCompilerError, match=r"/gone/g\+\+, which cannot be started any more"):
        run_compiler(["/gone/g++"], tmp_path / "log")


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first compile builds zig's own C++ library
@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="the ziglang wheel is not installed"
)
def test_ziglang_compiles_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    entry = KernelCache(tmp_path / "cache").find_or_build(SCALE, find_toolchain())
    assert entry.library.stat().st_size > 0
    assert "ziglang" in (entry.directory / "compile.sh").read_text()
