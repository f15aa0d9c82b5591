"""A file is there whole or not at all."""

from pathlib import Path

import pytest

from shorthaul.whole_file import whole_file


def test_the_old_content_stays_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "choice"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "choice"
    path.write_bytes(b"old")

    def write_half() -> None:
        with whole_file(path) as file:
            file.write(b"half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "gone" / "choice"):
        pass
