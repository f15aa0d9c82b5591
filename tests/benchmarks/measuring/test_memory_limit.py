"""Memory cgroups for benchmarks."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measuring.memory_limit import MemoryLimit, MemoryLimitError

HUNGRY = "import sys; sys.stdin.readline(); x = bytearray(int(sys.argv[1])); x[::4096] = bytes(len(x[::4096])); print(len(x), flush=True); sys.stdin.readline()"


def start(size_bytes: int) -> subprocess.Popen[str]:
    words = (sys.executable, "-c", HUNGRY, str(size_bytes))
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)


def test_a_process_that_wants_more_is_ended_and_one_that_does_not_is_counted() -> None:
    try:
        limit = MemoryLimit("shorthaul-test", 64 * 2**20).__enter__()
    except MemoryLimitError as error:
        pytest.skip(str(error))
    try:
        with start(16 * 2**20) as small, start(256 * 2**20) as large:
            for each in (small, large):
                limit.add(each.pid)
                assert each.stdin is not None
                each.stdin.write("\n")
                each.stdin.flush()
            assert large.wait() == -9
            assert small.stdout is not None
            assert small.stdout.readline() == f"{16 * 2**20}\n"
            used = limit.read()
            assert 16 * 2**20 <= used.resident_bytes <= 64 * 2**20
            assert used.resident_bytes <= used.largest_bytes <= 64 * 2**20
            small.communicate("\n")
    finally:
        limit.__exit__(None, None, None)
    assert not limit.folder.exists()


def test_where_none_can_be_made_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("")
    with (
        pytest.raises(MemoryLimitError, match="run as root"),
        MemoryLimit("x", 1, tmp_path / "memory"),
    ):
        pass
