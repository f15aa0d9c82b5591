"""Damaged files of every kind: an error of ours or the right answer, and never a crash."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.damage import damage, damage_bytes
from tests.hostile.hostile_databases import KINDS as DATABASES
from tests.hostile.hostile_files import KINDS, read_hostile, write_good
from tests.hostile.hostile_parts import KINDS as PART_KINDS
from tests.hostile.hostile_tables import TABLES, open_hostile, write_table

ROOT = Path(__file__).parents[2]


def run_seeds(first: int, stop: int, *kinds: str, module: str = "hostile_files") -> None:
    """In a process of its own, because a crash is what is looked for."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            f"tests.hostile.{module}",
            str(first),
            str(stop),
            *kinds,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    lines = done.stdout.splitlines() or ["nothing"]
    is_whole = done.returncode == 0 and lines[-1] == "finished"
    assert is_whole, f"at {lines[-1]}, status {done.returncode}\n{done.stderr[-4000:]}"


def test_a_few_damaged_files_of_every_kind() -> None:
    run_seeds(0, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(kind: str) -> None:
    run_seeds(25, 1000 if kind == "saved" else 4000, kind)


def test_a_few_damaged_tables_of_every_kind() -> None:
    run_seeds(0, 60, module="hostile_tables")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", TABLES)
def test_many_damaged_tables(kind: str) -> None:
    run_seeds(60, 3000, kind, module="hostile_tables")


def test_a_few_damaged_parts_of_every_kind() -> None:
    run_seeds(0, 12, module="hostile_parts")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", PART_KINDS)
def test_many_damaged_parts(kind: str) -> None:
    run_seeds(12, 500, kind, module="hostile_parts")


@pytest.mark.parametrize("kind", DATABASES)
def test_a_few_damaged_databases(kind: str) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    run_seeds(0, 15, kind, module="hostile_databases")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", DATABASES)
def test_many_damaged_databases(kind: str) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    run_seeds(15, 1000, kind, module="hostile_databases")


@pytest.mark.parametrize("kind", TABLES)
def test_good_tables_are_read(kind: str, tmp_path: Path) -> None:
    assert open_hostile(kind, write_table(kind, tmp_path / "good"))


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_damaged_and_not_all_of_them_refused(kind: str, tmp_path: Path) -> None:
    whole = write_good(kind, tmp_path / "good")
    read_hostile(kind, whole)
    files = [whole] if whole.is_file() else [each for each in whole.rglob("*") if each.is_file()]
    before = {each: each.read_bytes() for each in files}
    changed = set()
    for seed in range(30):
        path = damage_bytes(whole, random.Random(seed))
        changed.add(path.read_bytes() != before[path])
        path.write_bytes(before[path])
    assert True in changed


def test_damage_is_drawn_from_its_seed() -> None:
    content = bytes(range(256))
    drawn = {damage(content, random.Random(seed)) for seed in range(50)}
    assert len(drawn) > 40
    assert damage(content, random.Random(3)) == damage(content, random.Random(3))
