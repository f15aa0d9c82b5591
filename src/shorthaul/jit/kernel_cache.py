"""Shared objects on disk, found by content.

One directory per kernel, named by the digest of everything it depends on::

    <cache>/kernels/3f2a91bc.../
        kernel.cpp    the source, to be read
        include/      the headers that it includes, as they were
        compile.sh    the exact command, to be run again
        compile.log   what the compiler said
        kernel.so     the shared object
        entry.json    name, size and SHA-256 of the object, written last

An entry is built in a directory of its own and renamed into place, so that a reader sees all of it
or none. One lock file per digest makes processes that want the same kernel wait for one compile
instead of doing it again. The cache holds code that will be loaded, so a directory that somebody
else owns or may write to is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shorthaul.errors import CacheOwnershipError, CompileError
from shorthaul.jit.source import CppSource
from shorthaul.jit.toolchain import Toolchain
from shorthaul.meter import record_compile
from shorthaul.settings import settings

_log = logging.getLogger("shorthaul")


@dataclass(frozen=True)
class CacheEntry:
    """One kernel in the cache."""

    name: str
    digest: str
    directory: Path
    size_bytes: int
    used_at: float  # seconds since the epoch
    compile_seconds: float

    @property
    def library(self) -> Path:
        """The shared object."""
        return self.directory / "kernel.so"


class KernelCache:
    """The compiled kernels under one directory.

    >>> from shorthaul.jit.kernel_cache import KernelCache
    >>> [entry.name for entry in KernelCache().entries()]  # doctest: +SKIP
    ['fma_peak', 'uring']
    """

    def __init__(self, directory: Path | None = None, limit_bytes: int | None = None) -> None:
        self.directory = (directory or settings.cache_directory) / "kernels"
        self.limit_bytes = settings.cache_limit_bytes if limit_bytes is None else limit_bytes

    def find_or_build(self, source: CppSource, toolchain: Toolchain) -> CacheEntry:
        """The entry for `source`, compiled now if it is not there or not whole."""
        make_private_directory(self.directory)
        digest = source.digest(toolchain.fingerprint)
        entry = self.find(digest)
        if entry is None:
            with self._locked(digest):
                entry = self.find(digest) or self._build(source, toolchain, digest)
            self._remove_least_recently_used(keep=digest)
        return entry

    def find(self, digest: str) -> CacheEntry | None:
        """The whole, unchanged entry with this digest, marked as used; `None` if there is none."""
        directory = self.directory / digest
        entry = _read_entry(directory)
        if entry is None:
            return None
        try:
            content = entry.library.read_bytes()
            expected = json.loads((directory / "entry.json").read_text())["sha256"]
            is_whole = hashlib.sha256(content).hexdigest() == expected
            os.utime(directory / "entry.json")
        except (OSError, KeyError):
            is_whole = False
        if not is_whole:
            _log.warning("kernel cache: %s is damaged and will be built again", directory)
            return None
        return entry

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
            shutil.rmtree(self.directory)
        return removed

    def _build(self, source: CppSource, toolchain: Toolchain, digest: str) -> CacheEntry:
        target = self.directory / digest
        work = Path(tempfile.mkdtemp(prefix=f".{digest[:8]}-", dir=self.directory))
        try:
            seconds = _compile(source, toolchain, work, f"{source.name}_{digest[:8]}")
            library = work / "kernel.so"
            description = {
                "name": source.name,
                "digest": digest,
                "size_bytes": library.stat().st_size,
                "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
                "compile_seconds": seconds,
                "compiler": toolchain.version,
            }
            (work / "entry.json").write_text(json.dumps(description, indent=1))
            if target.exists():  # a damaged entry; processes that loaded it keep their mapping
                shutil.rmtree(target)
            work.rename(target)
        except CompileError:
            raise  # its message points into the directory, which therefore stays
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        record_compile(source.name)
        entry = _read_entry(target)
        assert entry is not None, "an entry that was just published can be read"
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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def make_private_directory(directory: Path) -> None:
    """Create `directory` for this user alone, or make sure that it already is."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (directory, directory.parent):
        found = path.stat()
        if found.st_uid != os.geteuid():
            raise CacheOwnershipError(path, f"it belongs to user {found.st_uid}, not to you")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(found.st_mode)
            raise CacheOwnershipError(path, f"others may write to it (mode {mode:04o})")


def _compile(source: CppSource, toolchain: Toolchain, work: Path, name: str) -> float:
    """Run the compiler in `work`, leaving source, command, log and object there."""
    header = f"// {name}, generated by shorthaul. compile.sh beside this file builds it again.\n"
    (work / "kernel.cpp").write_text(header + source.complete_text())
    for included, text in source.headers().items():
        path = work / "include" / included
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = toolchain.compile_command("kernel.cpp", "kernel.so", source.flags)
    script = work / "compile.sh"
    script.write_text(f'#!/bin/sh\ncd "$(dirname "$0")" && {shlex.join(command)}\n')
    script.chmod(0o700)
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=settings.compile_limit_seconds,
            check=False,
        )
        log, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired:
        log, failed = f"error: stopped after {settings.compile_limit_seconds:g} s", True
    (work / "compile.log").write_text(log)
    if failed:
        lines = log.splitlines()
        first_error = next((line for line in lines if "error" in line.lower()), log[:500])
        raise CompileError(toolchain.version, name, work / "kernel.cpp", script, first_error)
    return time.perf_counter() - started


def _read_entry(directory: Path) -> CacheEntry | None:
    try:
        description = json.loads((directory / "entry.json").read_text())
        return CacheEntry(
            name=description["name"],
            digest=description["digest"],
            directory=directory,
            size_bytes=description["size_bytes"],
            used_at=(directory / "entry.json").stat().st_mtime,
            compile_seconds=description["compile_seconds"],
        )
    except (OSError, ValueError, KeyError):
        return None
