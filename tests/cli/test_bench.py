"""`shorthaul bench`: finds the checkout, lists, runs each benchmark in a process of its own."""

import json
from pathlib import Path

import pytest
import torch

from shorthaul.cli.bench import find_checkout, list_benchmarks


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "checkout"
    benchmarks = root / "benchmarks" / "questions"
    benchmarks.mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nname = "shorthaul"\n')
    (root / "benchmarks" / "measuring").mkdir()
    (root / "benchmarks" / "measuring" / "measure.py").write_text(
        "from pathlib import Path\nROOT = Path.cwd()\n"
    )
    (benchmarks / "bench_rows.py").write_text(
        '"""How many rows per second?\n\nMore."""\n'
        "from benchmarks.measuring.measure import ROOT\n(ROOT / 'rows').touch()\n"
    )
    (benchmarks / "bench_calls.py").write_text(
        '"""What does a call cost?"""\nraise SystemExit(3)\n'
    )
    monkeypatch.chdir(root)
    return root


def test_the_checkout_is_found_from_below(checkout: Path) -> None:
    deep = checkout / "src" / "deep"
    deep.mkdir(parents=True)
    assert find_checkout(deep) == checkout
    assert find_checkout(checkout.parent) is None


def test_another_project_is_no_checkout(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text('[project]\nname = "longhaul"\n')
    assert find_checkout(checkout) is None


def test_questions_are_listed(shorthaul, checkout: Path) -> None:
    assert shorthaul("bench", "--list").output == (
        "calls  What does a call cost?\nrows   How many rows per second?\n"
    )
    assert json.loads(shorthaul("bench", "--list", "--json").stdout) == [
        {"name": "calls", "question": "What does a call cost?"},
        {"name": "rows", "question": "How many rows per second?"},
    ]


def test_a_file_that_is_not_python_is_listed_without_a_question(checkout: Path) -> None:
    (checkout / "benchmarks" / "questions" / "bench_broken.py").write_text("def :\n")
    assert [each.question for each in list_benchmarks(checkout)][:1] == [""]


@pytest.mark.parametrize("name", ["rows", "bench_rows", "benchmarks/bench_rows.py"])
def test_one_is_run_by_name(shorthaul, checkout: Path, name: str) -> None:
    shown = shorthaul("bench", name)
    assert shown.exit_code == 0
    assert shown.stderr.startswith("[1/1] rows: How many rows per second?\n[1/1] rows done after ")
    assert (checkout / "rows").exists()


def test_all_are_run_and_a_failure_does_not_stop_the_others(shorthaul, checkout: Path) -> None:
    shown = shorthaul("bench")
    assert shown.exit_code == 1
    assert "[1/2] calls failed with exit code 3 after " in shown.stderr
    assert "[2/2] rows done after " in shown.stderr
    assert shown.stderr.endswith("Failed: calls.\n")
    assert (checkout / "rows").exists()


def test_an_unknown_name_is_an_error_with_the_nearest(shorthaul, checkout: Path) -> None:
    shown = shorthaul("bench", "row")
    assert shown.exit_code == 1
    assert shown.stderr == "Error: no benchmark is called 'row'. Did you mean rows?\n"


def test_outside_a_checkout_it_says_so(
    shorthaul, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = shorthaul("bench")
    assert shown.exit_code == 1
    assert shown.stderr.startswith(f"Error: {tmp_path} is not inside a checkout of shorthaul: ")


def test_a_checkout_without_benchmarks(shorthaul, checkout: Path) -> None:
    for each in (checkout / "benchmarks" / "questions").glob("bench_*.py"):
        each.unlink()
    shown = shorthaul("bench")
    assert shown.exit_code == 1
    assert shown.stderr == f"Error: {checkout / 'benchmarks' / 'questions'} has no bench_*.py.\n"


def test_json_goes_with_the_list_only(shorthaul, checkout: Path) -> None:
    assert shorthaul("bench", "--json").exit_code == 2


@pytest.fixture
def gpu_checkout(checkout: Path) -> Path:
    folder = checkout / "benchmarks" / "questions" / "gpu"
    folder.mkdir()
    (folder / "bench_gpu_rows.py").write_text(
        '"""How fast is a GPU?"""\nimport sys\nfrom pathlib import Path\n'
        "Path('asked').write_text(' '.join(sys.argv[1:]))\n"
    )
    return checkout


def test_questions_for_a_gpu_are_listed_apart(shorthaul, gpu_checkout: Path) -> None:
    assert shorthaul("bench", "--gpu", "--list").output == "gpu_rows  How fast is a GPU?\n"
    assert "gpu_rows" not in shorthaul("bench", "--list").output


def test_questions_for_a_gpu_are_asked_where_there_is_one(
    shorthaul, gpu_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for options in ([], ["--quick"]):
        assert shorthaul("bench", "--gpu", *options).exit_code == 0
        assert (gpu_checkout / "asked").read_text() == " ".join(options)


def test_without_a_gpu_none_is_measured(
    shorthaul, gpu_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shown = shorthaul("bench", "--gpu")
    assert shown.exit_code == 1
    assert "PyTorch finds no CUDA device that could be measured." in shown.stderr
    assert not (gpu_checkout / "asked").exists()
