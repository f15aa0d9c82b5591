"""The pages on how to add something work as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.measuring.answer import Answer

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))


def read_block(page: str) -> str:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "how-to" / page).read_text(), re.M | re.S
    )
    assert len(blocks) == 1, f"{page} shows one program"
    return str(blocks[0])


def run_block(page: str, folder: Path) -> ModuleType:
    """The page's program as a module: what it asserts is asserted."""
    path = folder / f"{page.removesuffix('.md').replace('-', '_')}.py"
    path.write_text(read_block(page))
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    try:
        exec(compile(path.read_text(), path, "exec"), module.__dict__)
    finally:
        del sys.modules[path.stem]
    return module


@pytest.mark.parametrize("page", ["add-a-pass.md", "add-a-relational-layer.md"])
def test_programs_of_the_compilers_pages_hold(page: str, tmp_path: Path) -> None:
    assert run_block(page, tmp_path).__doc__ is None


def test_a_convolution_method_is_added(tmp_path: Path) -> None:
    from shorthaul.conv.methods import METHODS
    from shorthaul.conv.planning.choice import choose_schedule
    from shorthaul.conv.problem import ConvProblem

    METHODS.insert(0, run_block("add-a-convolution-method.md", tmp_path).Direct())
    try:
        assert choose_schedule(ConvProblem(3, 4, (1, 3, 3)), (1, 1, 8, 8)).method == "direct"
    finally:
        METHODS.pop(0)


def test_a_reader_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shorthaul.graphs.readers import READERS

    monkeypatch.chdir(tmp_path)
    try:
        assert run_block("add-a-reader.md", tmp_path).graph.num_edges == 3
    finally:
        READERS.pop("npz", None)


def test_a_benchmark_is_added(tmp_path: Path) -> None:
    module = run_block("add-a-benchmark.md", tmp_path)
    answer = Answer(rounds=2, is_quick=True)
    module.measure(answer)
    assert [row["arm"] for row in answer.rows] == ["index", "index_select"]


def test_kernels_are_waited_for(tmp_path: Path) -> None:
    module = run_block("wait-for-kernels.md", tmp_path)
    assert module.for_inference.mode == "inference"
    assert module.for_training.mode == "training"
    first, second = module.report.layers
    assert set(first.choices) == {"inference", "training, input given"}
    assert set(second.choices) == {"inference", "training"}


def test_an_engine_runs_its_contract(tmp_path: Path) -> None:
    path = tmp_path / "test_counting_engine.py"
    path.write_text(read_block("add-a-storage-engine.md"))
    options = ("-q", "-p", "no:cacheprovider", "-k", "reads_exactly or counted")
    done = subprocess.run(
        (sys.executable, "-m", "pytest", *options, str(path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_every_page_is_tested() -> None:
    text = Path(__file__).read_text()
    assert [page.name for page in PAGES if page.name not in text] == []
