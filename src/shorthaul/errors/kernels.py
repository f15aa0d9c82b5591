"""Errors about compilers, kernels, their cache and their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shorthaul.errors.root import ShorthaulError


class NoCompilerError(ShorthaulError, RuntimeError):
    """A generated kernel was asked for by name and there is no C++ compiler."""

    def __init__(self, looked_for: Sequence[str]) -> None:
        super().__init__(
            f"no C++ compiler was found (looked for: {', '.join(looked_for)}).\n"
            "  Install g++ or clang++ (Debian: apt-get install g++), set CXX, or\n"
            "  pip install 'shorthaul[compiler]'; `shorthaul doctor` shows what is found."
        )


class TritonUnavailableError(ShorthaulError, RuntimeError):
    """Triton was asked for by name and is installed, but cannot run kernels here."""

    def __init__(self, purpose: str, reason: str) -> None:
        super().__init__(
            f"{purpose} needs Triton to run kernels, and it cannot: {reason}.\n"
            "  Install both (Debian: apt-get install gcc python3-dev), or set CC to a compiler."
        )


class KernelMismatchError(ShorthaulError, RuntimeError):
    """A kernel on this device gives other numbers than plain PyTorch does."""

    def __init__(self, kernel: str, case: str, expected: str, got: str) -> None:
        super().__init__(
            f"{kernel} ({case}): expected {expected}, got {got}.\n"
            "  Do not trust results of this device; SHORTHAUL_KERNELS=torch computes without these\n"
            "  kernels. `shorthaul doctor --gpu --json` makes a report to send."
        )


class GridTooLargeError(ShorthaulError, RuntimeError):
    """A launch would have more programs than a GPU can count."""

    def __init__(self, kernel: str, programs: int, most: int) -> None:
        super().__init__(
            f"{kernel} would need {programs:,} programs, and a GPU counts to {most:,}.\n"
            "  Call it on a part of the rows at a time."
        )


class CompileError(ShorthaulError, RuntimeError):
    """The compiler rejected a generated source: a defect of shorthaul or of the tool chain."""

    def __init__(
        self, compiler: str, kernel: str, source: Path, command: Path, first_error: str
    ) -> None:
        super().__init__(
            f"{compiler} failed on {kernel}.\n"
            f"  source   {source}\n  command  {command}\n  first error: {first_error}"
        )
        self.source, self.command, self.first_error = source, command, first_error


class KernelPendingError(ShorthaulError, RuntimeError):
    """A kernel is still being compiled in the background, or did not compile there.

    Layers run by ATen meanwhile: only direct callers of the kernel see this error.
    """

    def __init__(self, kernel: str, *, has_failed: bool = False) -> None:
        happened = (
            "did not compile in the background; the log says why"
            if has_failed
            else "is still being compiled in the background"
        )
        super().__init__(
            f"{kernel} {happened}.\n"
            "  To wait for it, and to have the compiler's error here, set SHORTHAUL_COMPILE=wait."
        )
        self.kernel, self.has_failed = kernel, has_failed


class KernelLoadError(ShorthaulError, OSError):
    """A compiled kernel lies in the cache, but the system does not load it."""

    def __init__(self, library: Path, reason: str) -> None:
        super().__init__(
            f"{library} cannot be loaded: {reason}.\n"
            "  Where the file system is mounted `noexec`, point SHORTHAUL_CACHE at another one."
        )
        self.library = library

    def __str__(self) -> str:
        return str(self.args[0])


class CacheOwnershipError(ShorthaulError, PermissionError):
    """The kernel cache belongs to somebody else or can be written by others: it holds code."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"the kernel cache {directory} is refused: {reason}.\n"
            "  It holds code that would be loaded into this process. Make it yours alone\n"
            f"  (chmod 700 {directory}) or point SHORTHAUL_CACHE at another directory."
        )
        self.directory = directory

    def __str__(self) -> str:
        return str(self.args[0])


class KernelArgumentError(ShorthaulError, TypeError, ValueError):
    """A kernel was called with a tensor or number that its contract does not allow."""

    def __init__(self, kernel: str, argument: str, expected: str, got: str) -> None:
        super().__init__(f"{kernel}: argument `{argument}` must be {expected}, got {got}.")


class KernelStatusError(ShorthaulError, RuntimeError):
    """A kernel ran and reported failure through its return value."""

    def __init__(self, kernel: str, status: int) -> None:
        super().__init__(f"{kernel} returned status {status}; expected 0.")
        self.status = status


class TuningError(ShorthaulError, ValueError):
    """Autotuning was asked to choose among candidates that cannot be compared."""
