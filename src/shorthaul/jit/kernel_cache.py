"""Shared objects on disk, found by content.

One directory per kernel, named by the digest of everything it depends on::

    <cache>/kernels/3f2a91bc.../
        kernel.cpp    the source, to be read
        include/      the headers that it includes, as they were
        compile.sh    the exact command, to be run again
        compile.log   what the compiler said
        kernel.so     the shared object
        entry.json    name, size and SHA-256 of the object, written last
        callers-*.bin the compiled Python that checks calls, left there by `caller_cache`

An entry is built in a directory of its own and renamed into place, so that a reader sees all of it
or none. One lock file per digest makes processes that want the same kernel wait for one compile
instead of doing it again. The cache holds code that will be loaded, so a directory that somebody
else owns, may write to, or may replace is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shorthaul.announcements import announce
from shorthaul.errors import CacheOwnershipError, CompileError
from shorthaul.interrupts import PATIENCE_SECONDS
from shorthaul.jit.private_cache import private_directory, why_unwritable
from shorthaul.jit.source import CppSource
from shorthaul.jit.toolchain import STANDARD_HEADERS, Toolchain, run_compiler
from shorthaul.meter import record_compile
from shorthaul.settings import settings

_log = logging.getLogger("shorthaul")

# A build starts over, this often, when somebody removes the directory that it is working in or puts
# another in its place: a cleared cache is an ordinary event.
REBUILDS = 3
_DISTURBANCES = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
_FIRST_ERROR = re.compile(r"^.*\berror:.*$", re.MULTILINE)


@dataclass(frozen=True)
class CacheEntry:
    """One kernel in the cache."""

    name: str  # of the source
    digest: str  # of everything that changes the kernel
    directory: Path  # where it lies
    size_bytes: int  # of everything that lies in `directory`
    sha256: str  # of the shared object
    used_at: float  # seconds since the epoch
    compile_seconds: float  # what it took

    @property
    def library(self) -> Path:
        """The shared object."""
        return self.directory / "kernel.so"


class KernelCache:
    """The compiled kernels under one directory.

    >>> from shorthaul.jit.kernel_cache import KernelCache
    >>> [entry.name for entry in KernelCache().entries()]  # doctest: +SKIP
    ['fma_peak', 'uring']

    Args:
        directory: Where it lies; None (default) takes the cache directory of the settings.
        limit_bytes: What it may hold before the kernels unused longest are deleted; None (default)
            takes the setting.
        is_over: Whether who waits here for another process's compile has no use for it any more; None
            (default) for somebody who has.
    """

    def __init__(
        self,
        directory: Path | None = None,
        limit_bytes: int | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        self.directory = (directory or settings.cache_directory) / "kernels"
        self.limit_bytes = settings.cache_limit_bytes if limit_bytes is None else limit_bytes
        self._is_over = is_over

    def find_or_build(self, source: CppSource, toolchain: Toolchain) -> CacheEntry:
        """The entry for `source`, compiled now if it is missing or damaged.

        In a directory that cannot be written to, it is compiled in a private temporary one instead.

        Args:
            source: The kernel's text, functions and flags.
            toolchain: The compiler, from `find_toolchain`.
        """
        try:
            return self._find_or_build_undisturbed(source, toolchain)
        except (OSError, CompileError) as error:
            reason = why_unwritable(error)
            if reason is None:
                raise
            directory = private_directory("the kernel cache", self.directory, reason)
            if self.directory == directory / "kernels":
                raise
        elsewhere = KernelCache(directory, self.limit_bytes, self._is_over)
        return elsewhere.find_or_build(source, toolchain)

    def _find_or_build_undisturbed(self, source: CppSource, toolchain: Toolchain) -> CacheEntry:
        for _ in range(REBUILDS):
            try:
                return self._find_or_build(source, toolchain)
            except OSError as error:
                if error.errno not in _DISTURBANCES:
                    raise
        return self._find_or_build(source, toolchain)

    def _find_or_build(self, source: CppSource, toolchain: Toolchain) -> CacheEntry:
        make_private_directory(self.directory)
        digest = source.digest(toolchain.fingerprint)
        entry = self.find(digest)
        if entry is None:
            with self._locked(digest):
                entry = self._find_quietly(digest) or self._build(source, toolchain, digest)
            self._remove_least_recently_used(keep=digest)
        return entry

    def find(self, digest: str) -> CacheEntry | None:
        """The whole, unchanged entry with this digest, marked as used; `None` if there is none."""
        entry = self._find_quietly(digest)
        directory = self.directory / digest
        if entry is None and directory.is_dir():
            _log.warning("kernel cache: %s is damaged and will be built again", directory)
        return entry

    def _find_quietly(self, digest: str) -> CacheEntry | None:
        entry = _read_entry(self.directory / digest)
        if entry is None:
            return None
        _require_private(entry.directory)
        try:
            is_whole = _sha256(entry.library) == entry.sha256
        except OSError:
            is_whole = False
        if not is_whole:
            return None
        with contextlib.suppress(OSError):  # a cache that can only be read is a good cache
            os.utime(entry.directory / "entry.json")
        return entry

    def has(self, digest: str) -> bool:
        """Whether there seems to be an entry; `find` looks at what it holds.

        Args:
            digest: Of the source and its toolchain.
        """
        return (self.directory / digest / "entry.json").is_file()

    def precompile_headers(self, toolchain: Toolchain) -> None:
        """Have the system's headers read once for all compiles that come, if the compiler can.

        Kernels are the same with and without.

        Args:
            toolchain: The compiler.
        """
        target = self._headers(toolchain)
        if not toolchain.can_precompile or target.is_dir():
            return
        make_private_directory(self.directory)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        try:
            (work / "standard.h").write_text(STANDARD_HEADERS)
            command = toolchain.precompile_command("standard.h", "standard.h.gch")
            if run_compiler(command, work / "compile.log") == 0:
                with contextlib.suppress(OSError):  # another process was first
                    work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _headers(self, toolchain: Toolchain) -> Path:
        told = f"{toolchain.fingerprint}\n{STANDARD_HEADERS}"
        return self.directory / ".headers" / hashlib.sha256(told.encode()).hexdigest()

    def entries(self) -> tuple[CacheEntry, ...]:
        """Every whole entry, the least recently used first."""
        if not self.directory.is_dir():
            return ()
        make_private_directory(self.directory)
        found = (
            _read_entry(path)
            for path in self.directory.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )
        return tuple(sorted(filter(None, found), key=lambda entry: entry.used_at))

    def clear(self) -> tuple[CacheEntry, ...]:
        """Remove everything; returns what was there."""
        removed = self.entries()
        if self.directory.is_dir():
            # Moved aside first: a process that is compiling notices, and starts over elsewhere.
            aside = tempfile.mkdtemp(prefix=".removed-", dir=self.directory.parent)
            with contextlib.suppress(FileNotFoundError):  # somebody else clears it, too
                self.directory.rename(Path(aside) / "kernels")
        for left in self.directory.parent.glob(".removed-*"):
            shutil.rmtree(left, ignore_errors=True)
        return removed

    def _build(self, source: CppSource, toolchain: Toolchain, digest: str) -> CacheEntry:
        """Compile into a directory of its own and publish it; the caller holds the lock."""
        prefix, target = f".{digest[:16]}-", self.directory / digest
        for left in self.directory.glob(f"{prefix}*"):  # by a compile that failed or was killed
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=self.directory))
        try:
            name = f"{source.name}_{digest[:8]}"
            seconds = _compile(source, toolchain, work, name, self._headers(toolchain))
            files = [path for path in work.rglob("*") if path.is_file()]
            description = {
                "name": source.name,
                "digest": digest,
                "size_bytes": sum(path.stat().st_size for path in files),
                "sha256": _sha256(work / "kernel.so"),
                "compile_seconds": seconds,
                "compiler": toolchain.version,
            }
            (work / "entry.json").write_text(json.dumps(description, indent=1))
            if target.exists():  # a damaged entry; processes that loaded it keep their mapping
                shutil.rmtree(target)
            work.rename(target)
        except CompileError as error:
            if not work.is_dir():
                raise _removed(work) from error
            raise  # its message points into the directory, which therefore stays
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        record_compile(source.name)
        entry = _read_entry(target)
        if entry is None:
            raise _removed(target)
        return entry

    def _remove_least_recently_used(self, *, keep: str) -> None:
        entries = self.entries()
        excess_bytes = sum(entry.size_bytes for entry in entries) - self.limit_bytes
        for entry in entries:
            if excess_bytes <= 0:
                return
            if entry.digest != keep:
                with self._locked(entry.digest):
                    shutil.rmtree(entry.directory, ignore_errors=True)
                excess_bytes -= entry.size_bytes

    @contextlib.contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        # The lock is the file's, not its name's: it goes when its holder exits, however it exits.
        locks = self.directory / ".locks"
        locks.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(locks / digest, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _held.add(descriptor)
        try:
            self._lock(descriptor, digest)
            yield
        finally:
            if descriptor in _held:  # else this is a child that was forked meanwhile
                _held.discard(descriptor)
                # Said aloud, because closing is not enough where a child has the descriptor, too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def _lock(self, descriptor: int, digest: str) -> None:
        """Wait for the lock, and look now and then whether there is still a use for it."""
        if self._is_over is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if self._is_over():
                raise RuntimeError(f"kernel {digest[:16]}: nobody waits for it any more")
            time.sleep(PATIENCE_SECONDS)


# The descriptors of locks. A child that kept one would lock out everybody, itself included, once its parent is gone:
# a lock goes with the last descriptor of its file.
_held: set[int] = set()


def _close_held() -> None:
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_close_held)


def make_private_directory(directory: Path) -> None:
    """Create `directory` and its parent for this user alone, or make sure that they already are.

    A symbolic link of the user's own is followed, to a directory that must be private too. One that
    belongs to somebody else is refused, wherever it points now: its owner can point it elsewhere
    between this check and the loading of a kernel.
    """
    directory.parent.parent.mkdir(parents=True, exist_ok=True)
    for path in (directory.parent, directory):
        path.mkdir(mode=0o700, exist_ok=True)
        _require_private(path)


def _require_private(path: Path) -> None:
    link, found = path.lstat(), path.stat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):  # root may do anything
        raise CacheOwnershipError(path, f"it is a link that belongs to user {link.st_uid}")
    if found.st_uid != os.geteuid():
        raise CacheOwnershipError(path, f"it belongs to user {found.st_uid}, not to you")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise CacheOwnershipError(path, f"others may write to it (mode {mode:04o})")


def _compile(
    source: CppSource, toolchain: Toolchain, work: Path, name: str, headers: Path
) -> float:
    """Run the compiler in `work`, leaving source, command, log and object there.

    With precompiled headers where there are some, which change nothing but the time: the command that
    is left there does without.
    """
    header = f"// {name}, generated by shorthaul. compile.sh beside this file builds it again.\n"
    (work / "kernel.cpp").write_text(header + source.complete_text())
    for included, text in source.headers().items():
        path = work / "include" / included
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = toolchain.compile_command("kernel.cpp", "kernel.so", source.flags)
    script, log = work / "compile.sh", work / "compile.log"
    script.write_text(f'#!/bin/sh\ncd "$(dirname "$0")" && LC_ALL=C {shlex.join(command)}\n')
    script.chmod(0o700)
    if toolchain.is_zig:
        _announce_zig()
    started = time.perf_counter()
    status = 1
    if headers.is_dir():
        status = run_compiler((*command, "-I", str(headers), "-include", "standard.h"), log)
    if status > 0:  # there are none, or they may be what is wrong
        log.unlink(missing_ok=True)
        status = run_compiler(command, log)
    if status != 0:
        said = log.read_text(errors="replace")
        first = _FIRST_ERROR.search(said)
        first_error = first[0].strip() if first else said[:500].strip() or "(no output)"
        raise CompileError(toolchain.version, name, work / "kernel.cpp", script, first_error)
    return time.perf_counter() - started


@functools.cache  # its library is built once, and kept in a cache of its own
def _announce_zig() -> None:
    announce("the zig compiler builds its C++ library before its first kernel: half a minute, once")


def _removed(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "removed while a kernel was built there", str(path))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_entry(directory: Path) -> CacheEntry | None:
    """What entry.json says; `None` if it is absent, cut off, or another entry's."""
    try:
        description = json.loads((directory / "entry.json").read_text())
        if description["digest"] != directory.name:
            return None
        return CacheEntry(
            name=str(description["name"]),
            digest=directory.name,
            directory=directory,
            size_bytes=int(description["size_bytes"]),
            sha256=str(description["sha256"]),
            used_at=(directory / "entry.json").stat().st_mtime,
            compile_seconds=float(description["compile_seconds"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
