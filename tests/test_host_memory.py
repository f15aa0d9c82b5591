"""The memory that a process may use, as its control groups say."""

import os
from pathlib import Path

from shorthaul.host_memory import resident_bytes, usable_bytes

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


def test_what_is_resident_is_less_than_what_there_is_and_grows() -> None:
    before_bytes = resident_bytes()
    held = bytearray(b"x") * 2**26
    assert before_bytes + len(held) // 2 < resident_bytes() < PHYSICAL
