"""Finding a C++ compiler, and running it.

`$CXX`, else `g++`, else `clang++`, else the `ziglang` package. A compiler named in `$CXX` that is
not there is an error: something asked for by name is never replaced in silence.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shorthaul.errors import NoCompilerError
from shorthaul.settings import settings

# No -ffast-math: NaN, Inf and signed zeros behave as in PyTorch, and a sum keeps its order.
# -fno-math-errno only says that nobody reads errno after sqrt, -fno-trapping-math that nobody reads
# the flags of floating-point exceptions: without it g++ makes a branch of a comparison, and no
# vectors of its loop. Contraction is spelled out because g++ and clang++ have different defaults.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wl,-z,defs",  # a name that nothing defines is an error here, not when the object is loaded
    "-Wall",
    "-Wextra",
)


# What most kernels include of the system's: read once, it need not be read by each compile.
STANDARD_HEADERS = """\
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
"""


@dataclass(frozen=True)
class Toolchain:
    """One compiler: how to call it, and what makes its output its own."""

    command: tuple[str, ...]  # how it is called
    version: str  # what it says of itself
    processor: Processor  # what it compiles for

    @property
    def fingerprint(self) -> str:
        """Everything besides the source that a shared object depends on."""
        return "\n".join((*self.command, self.version, *FLAGS, str(self.processor)))

    @property
    def is_zig(self) -> bool:
        """Whether it is the `ziglang` package, whose first use takes long."""
        return "ziglang" in self.command

    def compile_command(self, source: str, output: str, flags: Sequence[str]) -> tuple[str, ...]:
        """The exact command that turns `source` into the shared object `output`.

        The source's own flags come after it, because a library is only searched for what the files
        before it need.

        Args:
            source: Name of the C++ file.
            output: Name of the shared object.
            flags: The source's own flags.
        """
        return (*self.command, *FLAGS, "-Iinclude", source, *flags, "-o", output)

    @property
    def can_precompile(self) -> bool:
        """Whether it is g++, which takes a precompiled header that fits and leaves one that does not."""
        said = self.version.lower()
        return "clang" not in said and ("g++" in said or "gcc" in said)

    def precompile_command(self, header: str, output: str) -> tuple[str, ...]:
        """The exact command that reads `header` once and for all.

        Args:
            header: Name of the header.
            output: Name of what is made of it: the header's with `.gch`.
        """
        flags = [each for each in FLAGS if each != "-shared" and not each.startswith("-Wl,")]
        return (*self.command, *flags, "-x", "c++-header", header, "-o", output)


def find_toolchain() -> Toolchain:
    """The compiler to use here, or `NoCompilerError` with the names that were looked for."""
    return _find_toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _find_toolchain(cxx: str, path: str) -> Toolchain:
    looked_for: list[str] = []
    for name, command in _candidates(cxx, path):
        version = _read_version(command) if command else None
        if version is not None:
            return Toolchain(command, version, read_processor())
        looked_for.append(f"{name} (found, but `--version` fails)" if command else name)
    raise NoCompilerError(looked_for)


def _candidates(cxx: str, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What to look for and the command that starts it, empty where there is none."""
    if cxx.strip():
        try:
            program, *arguments = shlex.split(cxx)
        except ValueError:  # quotes that do not match
            program, arguments = cxx, []
        found = _which(program, path)
        yield f"CXX={cxx}", (found, *arguments) if found else ()
        return
    for program in ("g++", "clang++"):
        found = _which(program, path)
        yield program, (found,) if found else ()
    has_zig = importlib.util.find_spec("ziglang") is not None
    yield "ziglang", (sys.executable, "-m", "ziglang", "c++") if has_zig else ()


def _which(program: str, path: str) -> str | None:
    found = shutil.which(program, path=path)
    # Absolute, because it will run in another directory; unresolved, because ccache and its like
    # are links that go by their name.
    return None if found is None else str(Path(found).absolute())


def _read_version(command: tuple[str, ...]) -> str | None:
    """The first line of what `--version` prints; `None` if that is nothing or a failure."""
    try:
        shown = subprocess.run(
            (*command, "--version"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=settings.compile_limit_seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = shown.stdout.splitlines()
    return lines[0] if shown.returncode == 0 and lines else None


# The compiler that a thread waits for, by the thread.
_running: dict[int, subprocess.Popen[bytes]] = {}
os.register_at_fork(after_in_child=_running.clear)  # they are the parent's


def stop_compilers(threads: Iterable[int]) -> None:
    """Stop the compilers that these threads wait for, and what those have started.

    Args:
        threads: Identifiers, as `threading.Thread.ident` has them.
    """
    for thread in threads:
        running = _running.get(thread)
        if running is not None and running.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def run_compiler(command: Sequence[str], log: Path) -> int:
    """The status of `command`, run beside `log`; one that hangs is stopped and the log says so."""
    with log.open("ab") as output:
        try:
            # A session of its own: g++ is a driver, and what it starts must stop with it.
            running = subprocess.Popen(
                command,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"LC_ALL": "C"},  # the first error is found by its English word
                start_new_session=True,
            )
        except OSError as error:
            if not log.parent.is_dir():
                raise
            raise NoCompilerError([f"{command[0]}, which cannot be started any more"]) from error
        _running[threading.get_ident()] = running
        try:
            return running.wait(settings.compile_limit_seconds)
        except subprocess.TimeoutExpired:
            output.write(f"error: stopped after {settings.compile_limit_seconds:g} s\n".encode())
            return -signal.SIGKILL
        finally:
            if running.poll() is None:  # also when the user interrupts
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
            del _running[threading.get_ident()]


@dataclass(frozen=True)
class Processor:
    """What `-march=native` depends on."""

    model: str
    features: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.model, *self.features))


@functools.cache
def read_processor() -> Processor:
    """The processor that this process runs on."""
    model, features = platform.processor() or platform.machine(), ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
            elif name.strip() in ("flags", "Features"):
                features = value
    return Processor(f"{platform.machine()} {model}", tuple(sorted(features.split())))
