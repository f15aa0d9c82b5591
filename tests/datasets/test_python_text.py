"""The corpus: whole files held out, sizes kept, batches that repeat with their seed."""

import ast
import sysconfig
from pathlib import Path

import pytest
import torch

from shorthaul.datasets import PythonText, python_text
from shorthaul.datasets.python_text import is_held_out
from shorthaul.datasets.standard_library import library_directory, list_library
from shorthaul.errors import DatasetError
from shorthaul.meter import meter
from shorthaul.settings import settings


@pytest.fixture(scope="module")
def text() -> PythonText:
    return python_text("200 kB")


def files_in(part: torch.Tensor) -> list[bytes]:
    """The whole files of a part; the last may have been cut."""
    return bytes(part.tolist()).split(b"\0")[:-1]


def test_sizes_are_kept_exactly(text: PythonText) -> None:
    assert (text.train.numel(), text.held_out.numel()) == (180_000, 20_000)
    assert text.train.dtype == text.held_out.dtype == torch.uint8
    assert text.vocabulary == 256
    small = python_text(10_000)
    assert torch.equal(small.train, text.train[:9_000])
    assert torch.equal(small.held_out, text.held_out[:1_000])


def test_whole_files_are_held_out_by_name() -> None:
    whole = python_text(None)
    by_content = {each.read(): each.name for each in list_library(library_directory())}
    held_out, train = files_in(whole.held_out), files_in(whole.train)
    assert all(is_held_out(by_content[each]) for each in held_out)
    assert not any(is_held_out(by_content[each]) for each in train)
    assert set(held_out).isdisjoint(train)
    assert 0.05 < len(held_out) / len(train) < 0.2
    assert whole.train.numel() > 2_000_000


def test_the_text_is_python(text: PythonText) -> None:
    first = files_in(text.train)[0]
    ast.parse(first)
    assert PythonText.decode(text.train[: len(first)]).encode() == first


def test_batches_are_next_token_pairs(text: PythonText) -> None:
    batches = list(text.batches(4, 32, steps=3))
    assert len(batches) == 3
    whole = bytes(text.train.tolist())
    for tokens, following in batches:
        assert tokens.shape == following.shape == (4, 32)
        assert tokens.dtype == following.dtype == torch.int64
        assert torch.equal(tokens[:, 1:], following[:, :-1])
        for row, last in zip(tokens, following[:, -1:], strict=True):
            assert bytes([*row.tolist(), *last.tolist()]) in whole


def test_a_seed_decides_the_batches_and_nothing_else(text: PythonText) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (
        torch.cat([tokens for tokens, _ in text.batches(4, 32, steps=5, seed=seed)])
        for seed in (7, 7, 8)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("length", [1, 33, 19_999])
def test_held_out_batches_cover_the_part_once(text: PythonText, length: int) -> None:
    windows = torch.cat([following for _, following in text.held_out_batches(7, length)])
    covered = windows.flatten()
    assert torch.equal(covered, text.held_out[1 : 1 + covered.numel()].long())
    assert text.held_out.numel() - 1 - covered.numel() < length


@pytest.mark.parametrize(("batch_size", "length"), [(0, 8), (2, 0), (2, 20_000), (2, 180_000)])
def test_windows_that_do_not_fit_are_refused(
    text: PythonText, batch_size: int, length: int
) -> None:
    with pytest.raises(DatasetError, match="a length from 1 to 19,999"):
        next(text.held_out_batches(batch_size, length))
    if length != 20_000:
        with pytest.raises(DatasetError, match="a length from 1 to 179,999"):
            next(text.batches(batch_size, length, steps=1))


def test_the_longest_window_is_the_whole_part() -> None:
    tiny = PythonText(torch.arange(5, dtype=torch.uint8), torch.arange(3, dtype=torch.uint8))
    (tokens, following), *_ = tiny.batches(1, 4, steps=1)
    assert tokens.tolist() == [[0, 1, 2, 3]]
    assert following.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("limit", [0, 9_999, "1 kB"])
def test_a_limit_that_is_too_small_is_refused(limit: int | str) -> None:
    with pytest.raises(DatasetError, match="limit_bytes must be at least 10,000"):
        python_text(limit)


def test_a_limit_that_is_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected bytes such as"):
        python_text("much")


def test_the_second_call_reads_no_source(tmp_path: Path) -> None:
    with settings.override(cache_directory=tmp_path):
        first = python_text(20_000)
        with meter() as m:
            second = python_text(20_000)
    assert m.bytes_between(why="library source") == 0
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.held_out, second.held_out)


def test_python_without_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DatasetError, match="comes with its source"):
        python_text()
