"""A benchmark file becomes a line of the ledger with its question, its commit and its rows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ledger import read_runs
from benchmarks.measuring.answer import Answer, Diary, describe_commit
from benchmarks.measuring.measure import Arm, UnequalError, same_bits

ROOT = Path(__file__).parents[3]

BENCHMARK = '''"""How fast is nothing?

More words.
"""
from benchmarks.measuring import answer
from benchmarks.measuring.measure import Arm, same_bits

def measure(bench):
    bench.state(page_cache="not used")
    arms = [Arm("plain", lambda: 0), Arm("ours", lambda: 0)]
    bench.compare("nothing", arms, baseline="plain", same=same_bits, sample_seconds=0.001,
                  figures={"ours": {"read_bytes": 4096}})

if __name__ == "__main__":
    answer.answer_question(measure, allocator="reuse")
'''


@pytest.fixture
def benchmark_file(tmp_path: Path) -> Path:
    path = tmp_path / "bench_nothing.py"
    path.write_text(BENCHMARK)
    return path


def _run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, "--ledger", script.parent / "ledger", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_a_benchmark_prints_its_table_and_adds_a_line_to_the_ledger(benchmark_file: Path) -> None:
    done = _run(benchmark_file, "--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| case | arm | median |")
    [run] = read_runs("nothing", benchmark_file.parent / "ledger")
    assert run["asks"] == "How fast is nothing?"
    assert run["conditions"] == {"page_cache": "not used"}
    assert "MALLOC_MMAP_MAX_=0" in run["machine"]["allocator"]
    assert run["commit"] == describe_commit(ROOT)["commit"]
    assert [(row["case"], row["arm"], row["rounds"], row["figures"]) for row in run["rows"]] == [
        ("nothing", "plain", 3, {}),
        ("nothing", "ours", 3, {"read_bytes": 4096}),
    ]


def test_a_rehearsal_is_not_in_the_ledger(benchmark_file: Path) -> None:
    benchmark_file.write_text(BENCHMARK.replace("reuse", "default"))
    done = _run(benchmark_file, "--quick")
    assert done.returncode == 0, done.stderr
    assert "2 interleaved rounds" in done.stdout
    assert not (benchmark_file.parent / "ledger").exists()


def test_rows_of_unequal_arms_are_never_kept() -> None:
    answer = Answer(rounds=1)
    arms = [Arm("plain", lambda: 1), Arm("ours", lambda: 2)]
    with pytest.raises(UnequalError):
        answer.compare("numbers", arms, baseline="plain", same=same_bits)
    assert answer.rows == []


def _commit(directory: Path, text: str) -> None:
    (directory / "file").write_text(text)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["add", "file"], [*author, "commit", "-qm", "a change"]):
        subprocess.run(["git", "-C", directory, *arguments], check=True)


def test_the_commit_is_told_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    assert describe_commit(tmp_path) == {"commit": "unknown", "is_changed": False}
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    _commit(tmp_path, "one")
    (tmp_path / "untracked").touch()
    clean = describe_commit(tmp_path)
    assert len(str(clean["commit"])) == 40
    assert clean["is_changed"] is False
    (tmp_path / "file").write_text("two")
    assert describe_commit(tmp_path) == {"commit": clean["commit"], "is_changed": True}


def test_only_names_a_part_of_the_cases() -> None:
    assert Answer().wants("gpt, batch 2")
    assert Answer(only="batch 2").wants("gpt, batch 2")
    assert not Answer(only="batch 2").wants("gpt, batch 4")


def test_a_part_is_not_added_to_the_ledger(benchmark_file: Path) -> None:
    done = _run(benchmark_file, "--rounds", "1", "--only", "nothing")
    assert done.returncode == 0, done.stderr
    assert not (benchmark_file.parent / "ledger").exists()


def _measure_each(answer: Answer, cases: list[str], *, breaks_off_at: str = "") -> list[str]:
    measured = []
    for case in answer.each_left(cases):
        if case == breaks_off_at:
            raise KeyboardInterrupt
        measured.append(case)
        answer.count(case, "ours", "plain", kernels=len(case))
    return measured


def test_a_run_that_was_broken_off_goes_on_after_its_finished_cases(tmp_path: Path) -> None:
    cases, commit = ["one", "three", "seven"], {"commit": "abc", "is_changed": False}
    first = Answer(diary=Diary(tmp_path / "diary", commit))
    with pytest.raises(KeyboardInterrupt):
        _measure_each(first, cases, breaks_off_at="seven")
    second = Answer(diary=Diary(tmp_path / "diary", commit))
    assert _measure_each(second, cases) == ["seven"]
    whole = Answer()
    assert _measure_each(whole, cases) == cases
    assert second.rows == whole.rows


def test_a_diary_of_another_commit_is_refused(tmp_path: Path) -> None:
    Diary(tmp_path / "diary", {"commit": "abc", "is_changed": False})
    with pytest.raises(SystemExit, match="begun by another commit"):
        Diary(tmp_path / "diary", {"commit": "def", "is_changed": False})


def test_a_run_says_which_parts_it_is_about() -> None:
    answer = Answer(parts=("b", "c"))
    assert answer.choose_parts(["a", "b", "c"]) == ["b", "c"]
    assert answer.conditions == {"parts": "b, c"}
    assert Answer().choose_parts(["a", "b"]) == ["a", "b"]
    with pytest.raises(SystemExit, match="no part is called c; there are a, b"):
        answer.choose_parts(["a", "b"])
