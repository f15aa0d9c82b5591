"""A writer of features that is interrupted, ended or killed leaves nothing, and the next save works."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.tensors.files.file_writer import FileWriter
from tests.injected_interrupts import find_places, obeys_after, run_interrupted

EVERY = 5  # of the lines, in the quick tests
ROWS = torch.arange(6000.0).view(-1, 4)
OLD = torch.zeros(3, 4)


def save(path: Path, **options: object) -> None:
    chunks = (ROWS[start : start + 300] for start in range(0, len(ROWS), 300))
    sh.save_features(path, chunks, chunk_bytes=8192, progress=False, **options)


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def read(path: Path) -> torch.Tensor:
    with sh.open(path).table as table:
        return table.read(0, table.rows)


def lines_of(function) -> list[int]:
    return sorted({line for *_, line in function.__code__.co_lines() if line})


# Between `__enter__` and the block, and before the first line of `__exit__` has run, no Python can
# catch a signal: what is left there is swept by the next save.
UNSEEN = {
    ("tensors/save_features.py", line)
    for line in (
        lines_of(FileWriter.__enter__)[-1],  # that which returns
        *lines_of(FileWriter.__exit__)[:2],
    )
}


def interrupt_each_line(folder: Path, every: int, **options: object) -> None:
    path = folder / "rows.safetensors"
    save(path, **options)
    expected = read(path)
    descriptors = count_descriptors()
    arrived = 0
    places = find_places(lambda: save(path, **options), "tensors/save", "storage/file")
    for place in places[::every]:
        if place in UNSEEN:
            continue
        sh.save_features(path, OLD, progress=False)
        arrived += run_interrupted(lambda: save(path, **options), place)
        found = read(path)
        assert torch.equal(found, expected if len(found) > 3 else OLD), place
        assert [each.name for each in folder.iterdir()] == [path.name], place
    gc.collect()
    assert count_descriptors() <= descriptors
    assert arrived > 5
    save(path, **options)
    assert torch.equal(read(path), expected)


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_some_lines(tmp_path, quantize):
    interrupt_each_line(tmp_path, EVERY, quantize=quantize)


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_each_line(tmp_path, quantize):
    interrupt_each_line(tmp_path, 1, quantize=quantize)


def test_signals_at_random_moments_all_arrive(tmp_path):
    path = tmp_path / "rows.npy"
    for delay in torch.rand(6, generator=torch.Generator().manual_seed(1)).tolist():
        assert obeys_after(0.1 * delay, lambda: save(path)), "the interrupt was lost"
        save(path)
        assert torch.equal(read(path), ROWS)
        assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_writer_that_is_ended_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.npy"
    sh.save_features(path, OLD, progress=False)
    script = (
        "import os, signal, torch, shorthaul as sh\n"
        "def chunks():\n"
        "    for _ in range(20): yield torch.ones(300, 4)\n"
        f"    os.kill(os.getpid(), {int(signal.SIGTERM)})\n"
        "    while True: yield torch.ones(300, 4)\n"
        f"sh.save_features({str(path)!r}, chunks(), chunk_bytes=8192, progress=False)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert torch.equal(read(path), OLD)
    save(path)
    assert torch.equal(read(path), ROWS)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
