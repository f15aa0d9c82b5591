"""Errors about files, engines and the bytes between them."""

from __future__ import annotations

import errno as errno_codes
import os

from shorthaul.errors.root import ShorthaulError
from shorthaul.units import format_bytes


class StorageError(ShorthaulError, OSError):
    """A read or write failed; names the file, the range and the errno."""

    def __init__(
        self,
        action: str,
        path: str | os.PathLike[str],
        offset_bytes: int,
        length_bytes: int,
        code: int,
        detail: str = "",
    ) -> None:
        name = errno_codes.errorcode.get(code, str(code))
        reason = os.strerror(code) if code else "no errno"
        self.message = (
            f"{action} of {os.fspath(path)} failed at bytes "
            f"{offset_bytes:,} to {offset_bytes + length_bytes:,}: {name} ({reason})."
            + (f"\n  {detail}" if detail else "")
        )
        super().__init__(code, self.message, os.fspath(path))
        self.action, self.offset_bytes, self.length_bytes = action, offset_bytes, length_bytes

    def __str__(self) -> str:
        return self.message


class ShortReadError(StorageError, EOFError):
    """A file ended before the range that was asked for: truncated, or never that long."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        offset_bytes: int,
        length_bytes: int,
        got_bytes: int,
        detail: str = "",
    ) -> None:
        super().__init__(
            "read",
            path,
            offset_bytes,
            length_bytes,
            errno_codes.ENODATA,
            f"The file ends early: {got_bytes:,} of {length_bytes:,} bytes were there."
            + (f"\n  {detail}" if detail else ""),
        )
        self.got_bytes = got_bytes


class UnsafeFileError(ShorthaulError, PermissionError):
    """A path is a symbolic link, not a regular file, or otherwise not safe to open."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(path)} is not opened: {reason}.")

    def __str__(self) -> str:
        return str(self.args[0])


class EngineClosedError(ShorthaulError, RuntimeError):
    """A request was made of, or was waiting in, a storage engine that has been closed."""


class EngineUnavailableError(ShorthaulError, RuntimeError):
    """A storage engine was asked for by name and cannot work on this machine."""

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(
            f"the {engine} engine cannot be used here: {reason}.\n"
            "  Set SHORTHAUL_ENGINE=auto to take the best engine that works."
        )
        self.engine, self.reason = engine, reason


class ForkedTicketError(ShorthaulError, RuntimeError):
    """A ticket was waited for in a forked child: its request stayed with the parent."""


class CancelledError(ShorthaulError, RuntimeError):
    """A ticket was waited for after its request had been cancelled."""


class WaitTimeoutError(ShorthaulError, TimeoutError):
    """A wait with a time limit ended before its request did."""

    def __init__(self, waited_for: str, seconds: float) -> None:
        super().__init__(f"{waited_for} was not done after {seconds:g} s.")

    def __str__(self) -> str:
        return str(self.args[0])


class BufferBudgetError(ShorthaulError, MemoryError):
    """A single buffer larger than the whole budget was asked of a buffer pool."""

    def __init__(self, wanted_bytes: int, budget_bytes: int) -> None:
        super().__init__(
            f"a buffer of {format_bytes(wanted_bytes)} ({wanted_bytes:,} bytes) can never fit "
            f"the pool's budget of {format_bytes(budget_bytes)} ({budget_bytes:,} bytes)."
        )
