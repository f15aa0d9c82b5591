"""A text file, gzipped or not, as blocks of whole lines, the next one read while one is parsed."""

from __future__ import annotations

import codecs
import gzip
import logging
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from shorthaul.errors import GraphFileError
from shorthaul.settings import settings

_log = logging.getLogger("shorthaul")

BLOCK_BYTES = 4 * 2**20
_COUNT_DIGITS = 18  # any number of this many digits fits an int64
_GZIP_MAGIC = b"\x1f\x8b"


def read_line_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[torch.Tensor]:
    """Blocks of `path` as uint8 tensors that end where a line ends; the last may lack its newline.

    Shows a progress bar, by the bytes of the file as it lies there, where `settings.progress` wants
    one.
    """
    with ExitStack() as closing:
        raw = closing.enter_context(_open(path))
        is_packed = raw.peek(2)[:2] == _GZIP_MAGIC  # type: ignore[attr-defined]
        text: IO[bytes] | gzip.GzipFile = raw
        if is_packed:
            text = closing.enter_context(gzip.GzipFile(fileobj=raw))
        bar = closing.enter_context(_progress_bar())
        task = bar.add_task(f"reading {path.name}", total=path.stat().st_size)
        reader = closing.enter_context(ThreadPoolExecutor(1, "shorthaul-graph-reader"))
        waiting = reader.submit(_read, text, block_bytes, path)
        begun = bytearray()  # of a line whose end is in a later block
        is_first = True
        while piece := waiting.result():
            waiting = reader.submit(_read, text, block_bytes, path)
            if is_first:
                piece, is_first = piece.removeprefix(codecs.BOM_UTF8), False
            stop = piece.rfind(b"\n") + 1
            if stop:
                begun += memoryview(piece)[:stop]
                yield torch.frombuffer(begun, dtype=torch.uint8)
                begun = bytearray()
            begun += memoryview(piece)[stop:]
            bar.update(task, completed=raw.tell())
        if begun:
            yield torch.frombuffer(begun, dtype=torch.uint8)


def read_lines(path: Path) -> Iterator[str]:
    """The same file, line by line, for those who have no compiler."""
    for block in read_line_blocks(path):
        text = block.numpy().tobytes().decode(errors="replace")
        yield from text.removesuffix("\n").split("\n")


def read_first_line(path: Path) -> str:
    """The first line, without what ends it."""
    lines = read_lines(path)
    try:
        return next(lines, "").strip()
    finally:
        lines.close()  # type: ignore[attr-defined]


def read_count(path: Path, line: int, text: str, expected: str) -> int:
    """The count that `text` is; `GraphFileError` says what was `expected` where it is none."""
    # Digits of other scripts are digits, too, for Python.
    if not text.isascii() or not text.isdecimal() or len(text.lstrip("0")) > _COUNT_DIGITS:
        raise GraphFileError(path, line, f"expected {expected}, got {text[:40]!r}.")
    return int(text.lstrip("0") or "0")


def note_skipped(path: Path, malformed: int, first: int) -> None:
    """Say in the log how many malformed lines of `path` were passed over, if any were."""
    if malformed:
        _log.warning(
            "%s: %s malformed lines were skipped, the first is line %s",
            *(path, f"{malformed:,}", f"{first:,}"),
        )


def _open(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise GraphFileError(path, None, f"cannot be opened: {error.strerror}.") from error


def _read(text: IO[bytes] | gzip.GzipFile, block_bytes: int, path: Path) -> bytes:
    try:
        return text.read(block_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise GraphFileError(
            path, None, f"its gzip data is damaged or cut off: {error}."
        ) from error


def _progress_bar() -> Progress:
    console = Console(stderr=True, force_terminal=True if settings.progress == "on" else None)
    shown = settings.progress != "off" and console.is_terminal
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not shown)
