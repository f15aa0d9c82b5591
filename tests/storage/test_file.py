"""Files are opened safely, know how they may be asked, and close after their last request."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shorthaul.errors import StorageError, UnsafeFileError
from shorthaul.storage import BufferPool, StorageFile, ThreadEngine, UringEngine, open_file
from shorthaul.storage import file as module
from shorthaul.storage.file import DirectAlignment, Part, ask_alignment, choose_part
from shorthaul.storage.testing.contract import PATIENCE_SECONDS, content_of
from tests.small_disks import small_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(content_of(10_000))
    return path


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_reading_is_read_only(path: Path) -> None:
    with open_file(path) as file:
        assert file.size_bytes == 10_000
        assert not file.is_writable
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(file.buffered_descriptor, b"x")


def test_writing_creates_and_keeps_what_is_there(path: Path) -> None:
    with open_file(path, "write") as file:
        assert file.size_bytes == 10_000
    with open_file(path.with_name("fresh"), "write") as file:
        assert file.is_writable
        assert file.size_bytes == 0
    assert path.with_name("fresh").exists()


def test_scratch_has_no_name_and_is_the_owners_alone(tmp_path: Path) -> None:
    with open_file(tmp_path, "scratch") as file:
        assert list(tmp_path.iterdir()) == []
        status = os.fstat(file.buffered_descriptor)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_nlink == 0
        file.reserve(100_000)
        assert file.size_bytes == 100_000


def test_scratch_without_unnamed_files_is_unlinked_at_once(tmp_path: Path, monkeypatch) -> None:
    real_open = os.open

    def without_unnamed(path, flags, *mode, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "as file systems without O_TMPFILE answer")
        return real_open(path, flags, *mode, **named)

    monkeypatch.setattr(module.os, "open", without_unnamed)
    with open_file(tmp_path, "scratch") as file:
        assert list(tmp_path.iterdir()) == []
        assert stat.S_IMODE(os.fstat(file.buffered_descriptor).st_mode) == 0o600


@pytest.mark.parametrize("mode", ["read", "write"])
def test_descriptors_are_not_inherited_and_block(path: Path, mode) -> None:
    with open_file(path, mode) as file:
        for descriptor in (file.buffered_descriptor, file.direct_descriptor):
            if descriptor >= 0:
                assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
                assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_NONBLOCK


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_link_is_not_followed(path: Path, mode) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(UnsafeFileError, match=r"link is not opened: it is a symbolic link\."):
        open_file(link, mode)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_what_is_not_a_regular_file_is_refused(tmp_path: Path, mode) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for unsafe in (pipe, tmp_path, Path("/dev/null"), Path("/dev/full")):
        before = count_descriptors()
        with pytest.raises(UnsafeFileError, match="it is not a regular file"):
            open_file(unsafe, mode)
        assert count_descriptors() == before


def test_a_stranger_s_file_in_a_shared_directory_is_not_written_to(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can plant another user's file")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    planted = shared / "spool"
    planted.write_bytes(b"")
    os.chown(planted, 12345, 12345)
    planted.chmod(0o666)
    with pytest.raises(UnsafeFileError, match="it belongs to user 12345"):
        open_file(planted, "write")
    shared.chmod(0o755)
    open_file(planted, "write").close()


def test_a_missing_file_is_the_usual_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "nothing")


def test_refuses_an_unknown_mode(path: Path) -> None:
    with pytest.raises(ValueError, match="'read', 'write' or 'scratch', got 'append'"):
        open_file(path, "append")  # type: ignore[arg-type]


def test_buffered_on_request(path: Path) -> None:
    with open_file(path, direct=False) as file:
        assert not file.is_direct
        assert file.buffered_reason == "it was asked for"
        assert file.direct_descriptor == -1


def test_no_direct_requests_is_said_once(path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "ask_alignment", lambda _: DirectAlignment(0, 1))
    for _ in range(2):
        with open_file(path) as file:
            assert not file.is_direct
            assert "takes no direct requests" in (file.buffered_reason or "")
            assert (file.alignment_bytes, file.memory_alignment_bytes) == (1, 1)
    assert caplog.text.count("using buffered requests") == 1


def test_a_file_system_that_refuses_o_direct_is_buffered(path: Path, monkeypatch) -> None:
    real_open = os.open

    def without_direct(path, flags, *mode, **named):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "as file systems without O_DIRECT answer")
        return real_open(path, flags, *mode, **named)

    monkeypatch.setattr(module.os, "open", without_direct)
    with open_file(path) as file:
        assert file.buffered_reason == "the file system has no direct requests"


def test_the_alignment_is_the_kernel_s(path: Path) -> None:
    with open_file(path) as file:
        if not file.is_direct:
            pytest.skip("no direct requests here")
        asked = ask_alignment(file.buffered_descriptor)
        assert file.alignment_bytes == asked.offset_bytes
        assert asked.offset_bytes in (512, 1024, 2048, 4096, 8192, 16_384, 65_536)
        assert file.write_alignment_bytes % max(4096, file.alignment_bytes) == 0


class _Aligned:
    is_direct = True
    alignment_bytes = 512
    memory_alignment_bytes = 4
    write_alignment_bytes = 4096


@pytest.mark.parametrize(
    ("offset", "length", "address", "is_write", "part"),
    [
        (512, 1024, 4, False, Part(True, 1024)),
        (512, 1024, 2, False, Part(False, 1024)),
        (511, 1024, 4, False, Part(False, 1024)),
        (512, 1000, 4, False, Part(False, 1000)),
        (512, 65_536 + 1, 4, False, Part(True, 65_536)),
        (512, 65_536 - 1, 4, False, Part(False, 65_536 - 1)),
        (512, 4096, 4, True, Part(False, 4096)),
        (4096, 4096, 4, True, Part(True, 4096)),
        (4096, 69_632 + 512, 4, True, Part(True, 69_632)),
    ],
)
def test_aligned_is_direct(offset, length, address, is_write, part) -> None:
    file: StorageFile = _Aligned()  # type: ignore[assignment]
    assert choose_part(file, offset, length, address, is_write=is_write) == part


def test_closing_twice_and_using_after(path: Path) -> None:
    file = open_file(path)
    descriptors = [file.buffered_descriptor, file.direct_descriptor]
    file.close()
    file.close()
    for descriptor in descriptors:
        if descriptor >= 0:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
    for use in (file.sync, lambda: file.reserve(1), lambda: file.size_bytes, file.hold):
        with pytest.raises(ValueError, match="is closed"):
            use()
    assert "closed" in repr(file)


def test_a_forgotten_file_is_closed(path: Path) -> None:
    before = count_descriptors()
    open_file(path)
    assert count_descriptors() == before


def test_sync_and_reserve(tmp_path: Path) -> None:
    with open_file(tmp_path, "scratch") as file:
        file.reserve(1000)
        file.sync()
        with pytest.raises(StorageError, match="reserve of"):
            file.reserve(2**62)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with small_disk(tmp_path / "small", "1m") as mount:
        yield mount


@pytest.mark.parametrize("kind", [UringEngine, ThreadEngine])
def test_a_full_disk_is_an_error_with_what_was_written(full_disk: Path, kind) -> None:
    with kind() as engine, open_file(full_disk, "scratch") as file, BufferPool("8MiB") as pool:
        ticket = engine.write(file, 0, pool.take(4 * 2**20))
        with pytest.raises(StorageError, match="Free some space") as raised:
            ticket.wait(PATIENCE_SECONDS)
        assert raised.value.errno == errno.ENOSPC
        assert ticket.failures[0].moved_bytes <= 2**20
        with pytest.raises(StorageError) as raised:
            file.reserve(4 * 2**20)
        assert raised.value.errno == errno.ENOSPC
        with open_file(full_disk, "scratch") as other:
            os.ftruncate(file.buffered_descriptor, 0)
            engine.write(other, 0, pool.take(2**19)).wait(PATIENCE_SECONDS)
