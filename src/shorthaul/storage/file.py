"""Files opened safely, with one descriptor for direct requests and one for the rest.

>>> import tempfile
>>> with open_file(tempfile.gettempdir(), "scratch") as file:
...     file.reserve(8192)
...     file.size_bytes
8192

O_DIRECT moves bytes between the disk and the caller's memory without a copy in the page cache, but
only where offset, length and address are aligned. What is not aligned (a file's tail, a small piece)
goes through the second, buffered descriptor of the same file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from shorthaul.closing import Closing
from shorthaul.errors import StorageError, UnsafeFileError
from shorthaul.fallbacks import note_fallback
from shorthaul.interrupts import when_gone

Mode = Literal["read", "write", "scratch"]

# The tail of a long request is cut off only when the direct body is worth a transfer of its own.
SMALLEST_BODY_BYTES = 64 * 1024
# Used where O_DIRECT works but the kernel does not say with which alignment (before 6.1, or a file
# system that does not fill it in): no disk in use has larger sectors.
UNKNOWN_ALIGNMENT_BYTES = 4096

_requests_lock = threading.Lock()

_STATX_DIOALIGN = 0x2000
_AT_EMPTY_PATH = 0x1000
_STATX_BYTES = 256


class Part(NamedTuple):
    """One transfer of a request."""

    is_direct: bool
    length_bytes: int


class DirectAlignment(NamedTuple):
    """What direct requests must be multiples of; zero offset alignment means never direct."""

    offset_bytes: int
    memory_bytes: int


class StorageFile(Closing):
    """One regular file, open for reading, writing or as scratch.

    Made by `open_file`. `is_direct` tells whether aligned requests bypass the page cache, and
    `buffered_reason` why not. Closing waits for nothing: requests that are under way keep the
    descriptors open until they end, so that a number is never reused by another file while the kernel
    still writes through it.
    """

    def __init__(
        self, path: Path, mode: Mode, descriptor: int, direct: int, alignment: DirectAlignment
    ) -> None:
        self.path = path
        self.mode = mode
        self.buffered_descriptor = descriptor
        self.direct_descriptor = direct
        self.is_direct = direct >= 0
        self.buffered_reason: str | None = None
        self.alignment_bytes = alignment.offset_bytes if self.is_direct else 1
        self.memory_alignment_bytes = alignment.memory_bytes if self.is_direct else 1
        # A buffered write dirties whole pages and blocks, and writing them back would undo a
        # direct write to another part of the same block. So direct writes cover whole ones.
        block_bytes = max(mmap.PAGESIZE, os.fstatvfs(descriptor).f_frsize)
        self.write_alignment_bytes = max(block_bytes, self.alignment_bytes)
        status = os.fstat(descriptor)
        self.identity = (status.st_dev, status.st_ino)
        self._requests = 0
        self._is_closed = False
        # A request under way keeps the file alive.
        self._endings = [
            when_gone(self, os.close, each) for each in (descriptor, direct) if each >= 0
        ]

    @property
    def size_bytes(self) -> int:
        """The size now, asked of the file system."""
        self._require_open()
        return os.fstat(self.buffered_descriptor).st_size

    @property
    def is_writable(self) -> bool:
        """Whether the file was opened for writing or as scratch."""
        return self.mode != "read"

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._is_closed

    def reserve(self, length_bytes: int) -> None:
        """Have the file system set space aside, so that a full disk shows now and not half-way.

        Writes inside a reserved file also run side by side; extending a file is one at a time.
        """
        self._require_open()
        try:
            os.posix_fallocate(self.buffered_descriptor, 0, length_bytes)
        except OSError as error:
            raise StorageError("reserve", self.path, 0, length_bytes, error.errno or 0) from error

    def sync(self) -> None:
        """Return when everything written is on the disk itself."""
        self._require_open()
        try:
            os.fsync(self.buffered_descriptor)
        except OSError as error:
            raise StorageError("sync", self.path, 0, self.size_bytes, error.errno or 0) from error

    def close(self) -> None:
        """Close the file; again is harmless. Requests under way end first."""
        with _requests_lock:
            self._is_closed = True
            self._close_if_unused()

    def hold(self, *, is_held: bool = False) -> None:
        """Keep the descriptors open for one more request.

        One that `is_held` is part of another request, and goes on after `close` as that does.
        """
        with _requests_lock:
            if not is_held:
                self._require_open()
            self._requests += 1

    def drop(self) -> None:
        """One request ended."""
        with _requests_lock:
            self._requests -= 1
            self._close_if_unused()

    def give_up_direct(self) -> None:
        """Take buffered requests from now on: a direct one was refused, and buffered it worked."""
        if self.is_direct:
            self.is_direct = False
            self.buffered_reason = "direct requests are refused, although the file opened for them"
            note_fallback(f"files in {self.path.parent}", "buffered requests", self.buffered_reason)

    def _close_if_unused(self) -> None:
        if self._is_closed and self._requests == 0 and self.buffered_descriptor >= 0:
            for ending in self._endings:
                ending.cancel()
            for descriptor in (self.buffered_descriptor, self.direct_descriptor):
                if descriptor >= 0:
                    os.close(descriptor)
            self.buffered_descriptor = self.direct_descriptor = -1

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self.path} is closed; open it again with open_file")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "direct" if self.is_direct else "buffered"
        return f"StorageFile({str(self.path)!r}, {self.mode}, {state})"


def open_file(
    path: str | os.PathLike[str], mode: Mode = "read", *, direct: bool = True
) -> StorageFile:
    """Open a regular file for the storage engines.

    Links, devices and pipes are refused (`UnsafeFileError`), and so is writing to somebody else's
    file in a directory that anybody may write to.

    Args:
        path: The file; with `"scratch"`, a directory.
        mode: `"read"` (default) opens read-only, `"write"` opens or creates for reading and writing
            and keeps what is there, `"scratch"` makes a file without a name, which vanishes with
            its last descriptor.
        direct: Let aligned requests bypass the page cache where the file system can (default True).
    """
    chosen = Path(path)
    if mode == "scratch":
        chosen, descriptor = _open_scratch(chosen)
    elif mode in ("read", "write"):
        descriptor = _open_named(chosen, mode)
    else:
        raise ValueError(f"mode must be 'read', 'write' or 'scratch', got {mode!r}")
    with _closing_on_error(descriptor):
        _require_safe(chosen, mode, descriptor)
        # Read-ahead would fetch what nobody asked for: every request here is exactly what is wanted.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        alignment = ask_alignment(descriptor)
        reason = "it was asked for" if not direct else ""
        other = -1
        if direct and alignment.offset_bytes == 0:
            reason = "the file system says that this file takes no direct requests"
        elif direct:
            other, reason = _open_direct(descriptor, mode)
    file = StorageFile(chosen, mode, descriptor, other, alignment)
    if not file.is_direct:
        file.buffered_reason = reason
        if direct:
            note_fallback(f"files in {chosen.parent}", "buffered requests", reason)
    return file


def choose_part(
    file: StorageFile, offset_bytes: int, length_bytes: int, address: int, *, is_write: bool
) -> Part:
    """The next transfer of a request: through which descriptor, and how much of it.

    | offset, address | length    | next                                                      |
    | aligned         | aligned   | all of it, direct                                         |
    | aligned         | unaligned | the aligned body, direct; all of it, buffered, when small |
    | unaligned       | any       | all of it, buffered                                       |

    What a part leaves (the tail after a body, the rest after a short transfer) is asked for again.
    """
    alignment = file.write_alignment_bytes if is_write else file.alignment_bytes
    if not file.is_direct or offset_bytes % alignment or address % file.memory_alignment_bytes:
        return Part(False, length_bytes)
    tail_bytes = length_bytes % alignment
    body_bytes = length_bytes - tail_bytes
    if tail_bytes and body_bytes < SMALLEST_BODY_BYTES:
        return Part(False, length_bytes)
    return Part(True, body_bytes)


def ask_alignment(descriptor: int) -> DirectAlignment:
    """What the kernel says direct requests must be aligned to (`statx` with DIOALIGN)."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except AttributeError:  # a C library from before 2018
        return DirectAlignment(UNKNOWN_ALIGNMENT_BYTES, UNKNOWN_ALIGNMENT_BYTES)
    failed = statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer) != 0
    (mask,) = struct.unpack_from("=I", answer, 0)
    if failed or not mask & _STATX_DIOALIGN:
        return DirectAlignment(UNKNOWN_ALIGNMENT_BYTES, UNKNOWN_ALIGNMENT_BYTES)
    memory_bytes, offset_bytes = struct.unpack_from("=II", answer, 152)
    return DirectAlignment(offset_bytes, max(1, memory_bytes))


def _open_named(path: Path, mode: Mode) -> int:
    # O_NONBLOCK: opening somebody's pipe must not hang; _require_safe takes it off again.
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
    flags |= os.O_RDONLY if mode == "read" else os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeFileError(path, "it is a symbolic link") from error
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise UnsafeFileError(path, "it is not a regular file") from error
        raise


def _open_scratch(directory: Path) -> tuple[Path, int]:
    """A file without a name; the path returned is for messages only."""
    flags = os.O_RDWR | os.O_CLOEXEC
    path = directory / f".shorthaul-scratch-{secrets.token_hex(8)}"
    try:
        return path, os.open(directory, flags | os.O_TMPFILE | os.O_EXCL, 0o600)
    except OSError as error:
        # What file systems and kernels without O_TMPFILE answer. EISDIR is the oldest of them.
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with _closing_on_error(descriptor):
        path.unlink()
    return path, descriptor


def _open_direct(descriptor: int, mode: Mode) -> tuple[int, str]:
    """A direct descriptor of the same file, or -1 and why there is none.

    Opened through the first descriptor, never by name: the name may have been given to another file.
    """
    access = os.O_RDONLY if mode == "read" else os.O_RDWR
    try:
        flags = access | os.O_CLOEXEC | os.O_DIRECT
        return os.open(f"/proc/self/fd/{descriptor}", flags), ""
    except OSError as error:
        if error.errno == errno.EINVAL:
            return -1, "the file system has no direct requests"
        return -1, f"no direct descriptor could be opened ({error.strerror})"


def _require_safe(path: Path, mode: Mode, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFileError(path, "it is not a regular file")
    if mode == "write" and status.st_uid not in (os.geteuid(), 0):
        directory = path.absolute().parent.stat()
        if directory.st_mode & stat.S_IWOTH:
            reason = f"it belongs to user {status.st_uid}, in a directory that anybody may write to"
            raise UnsafeFileError(path, reason)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)


@contextlib.contextmanager
def _closing_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


def _start_afresh() -> None:
    # Held by another thread at the fork, it would be held forever in the child.
    global _requests_lock
    _requests_lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
