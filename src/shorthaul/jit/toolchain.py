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
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shorthaul.errors import NoCompilerError

# No -ffast-math: NaN, Inf and signed zeros behave as in PyTorch, and a sum keeps its order.
# -fno-math-errno only says that nobody reads errno after sqrt. Contraction is spelled out because
# g++ and clang++ have different defaults for it.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
)


@dataclass(frozen=True)
class Toolchain:
    """One compiler: how to call it, and what makes its output its own."""

    command: tuple[str, ...]
    version: str
    processor: Processor

    @property
    def fingerprint(self) -> str:
        """Everything besides the source that a shared object depends on."""
        return "\n".join((*self.command, self.version, *FLAGS, str(self.processor)))

    def compile_command(self, source: str, output: str, flags: Sequence[str]) -> tuple[str, ...]:
        """The exact command that turns `source` into the shared object `output`."""
        return (*self.command, *FLAGS, *flags, "-Iinclude", source, "-o", output)


def find_toolchain() -> Toolchain:
    """The compiler to use here, or `NoCompilerError` with the names that were looked for."""
    return _find_toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _find_toolchain(cxx: str, path: str) -> Toolchain:
    candidates = [tuple(shlex.split(cxx))] if cxx.strip() else [("g++",), ("clang++",)]
    for command in candidates:
        found = shutil.which(command[0], path=path)
        if found is not None:
            return _describe((found, *command[1:]))
    if not cxx.strip() and importlib.util.find_spec("ziglang") is not None:
        return _describe((sys.executable, "-m", "ziglang", "c++"))
    raise NoCompilerError([f"CXX={cxx}"] if cxx.strip() else ["g++", "clang++", "ziglang"])


def _describe(command: tuple[str, ...]) -> Toolchain:
    shown = subprocess.run(
        (*command, "--version"), capture_output=True, text=True, timeout=60, check=False
    )
    lines = shown.stdout.splitlines()
    if shown.returncode != 0 or not lines:
        raise NoCompilerError([f"{shlex.join(command)} (found, but `--version` fails)"])
    return Toolchain(command, lines[0], read_processor())


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
