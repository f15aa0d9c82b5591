"""Files as blocks of whole lines."""

import gzip
import threading

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import GraphFileError
from shorthaul.graphs.readers.line_blocks import read_line_blocks, read_lines

TEXT = b"one\ntwo two\n\nlonger than a block of this size\nlast without an end"


@pytest.mark.parametrize("block_bytes", [1, 3, 8, 1000])
@pytest.mark.parametrize("is_packed", [False, True])
def test_blocks_are_whole_lines_and_the_whole_file(tmp_path, block_bytes, is_packed) -> None:
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(TEXT) if is_packed else TEXT)
    blocks = [bytes(each.numpy()) for each in read_line_blocks(path, block_bytes)]
    assert b"".join(blocks) == TEXT
    assert all(each.endswith(b"\n") for each in blocks[:-1])


def test_lines_and_a_byte_order_mark(tmp_path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert list(read_lines(path)) == ["one\r", "two"]


def test_an_empty_file_has_no_blocks(tmp_path) -> None:
    path = tmp_path / "text"
    path.touch()
    assert list(read_line_blocks(path)) == []


@pytest.mark.parametrize("damage", [lambda b: b[:-12], lambda b: b[:20] + b"\xff\xff\xff" + b[23:]])
def test_damaged_gzip_data_is_named(tmp_path, damage) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(damage(gzip.compress(bytes(range(256)) * 40)))
    with pytest.raises(GraphFileError, match=r"text\.gz: its gzip data is damaged or cut off"):
        list(read_line_blocks(path))


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(GraphFileError, match="gone: cannot be opened: No such file"):
        list(read_line_blocks(tmp_path / "gone"))


def test_a_reader_that_is_dropped_leaves_no_thread(tmp_path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"line\n" * 1000)
    blocks = read_line_blocks(path, 100)
    next(blocks)
    blocks.close()
    assert not [each for each in threading.enumerate() if "graph-reader" in each.name]


def test_a_progress_bar_where_one_is_wanted(tmp_path, capsys) -> None:
    path = tmp_path / "text.nt"
    path.write_bytes(TEXT)
    with sh.settings.override(progress="on"):
        assert sum(each.numel() for each in read_line_blocks(path)) == len(TEXT)
    assert "reading text.nt" in capsys.readouterr().err
    with sh.settings.override(progress="off"):
        assert all(each.dtype is torch.uint8 for each in read_line_blocks(path))
    assert capsys.readouterr().err == ""
