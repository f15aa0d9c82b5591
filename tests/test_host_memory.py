"""The memory that a process may use, as its control groups say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shorthaul.host_memory import usable_bytes

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def write_limit(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert usable_bytes(tmp_path / "missing", tmp_path) == PHYSICAL


def test_the_first_version_has_a_tree_for_memory(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("5:cpu,cpuacct:/job\n4:memory:/job/step\n0::/\n")
    write_limit(tmp_path / "memory" / "job" / "step" / "memory.limit_in_bytes", f"{2**62}\n")
    assert usable_bytes(groups, tmp_path) == PHYSICAL
    write_limit(tmp_path / "memory" / "job" / "memory.limit_in_bytes", "1048576\n")
    assert usable_bytes(groups, tmp_path) == 1048576


def test_the_second_version_has_one_tree(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("0::/job/step\n")
    write_limit(tmp_path / "job" / "step" / "memory.max", "max\n")
    assert usable_bytes(groups, tmp_path) == PHYSICAL
    write_limit(tmp_path / "job" / "memory.max", "4096\n")
    assert usable_bytes(groups, tmp_path) == 4096


HOLDING = """
from shorthaul.host_memory import resident_bytes

before_bytes = resident_bytes()
held = bytearray(b"x") * 2**26
print(resident_bytes() - before_bytes, resident_bytes())
"""


def test_what_is_resident_is_less_than_what_there_is_and_grows() -> None:
    words = (sys.executable, "-c", HOLDING)  # here, freed memory would be used again
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    grown_bytes, now_bytes = map(int, done.stdout.split())
    assert 2**25 < grown_bytes < now_bytes < PHYSICAL


KEEPING = """
import sys, torch
from shorthaul.host_memory import resident_bytes, return_large_blocks

torch.empty(16 * 2**20, dtype=torch.uint8).fill_(1)  # freed: what is smaller is now kept
if sys.argv[1] == "returned":
    assert return_large_blocks()
blocks = [torch.empty(4 * 2**20, dtype=torch.uint8).fill_(1) for _ in range(16)]
full_bytes = resident_bytes()
del blocks[::2], blocks[:-1]  # the last one holds the heap's end
print(full_bytes - resident_bytes())
"""


@pytest.mark.parametrize("name", ["kept", "returned"])
def test_large_blocks_go_back_when_they_are_freed(name: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    words = (sys.executable, "-c", KEEPING, name)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    freed_bytes = int(done.stdout)
    if name == "returned":
        assert freed_bytes > 50 * 2**20
    else:
        assert freed_bytes < 10 * 2**20
