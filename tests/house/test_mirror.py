"""Tests mirror the folders of the source: whoever knows where a thing is knows where its tests are.

`src/shorthaul/a/b/*.py` is tested by files in `tests/a/b`; what they are called is free. Benchmarks and
examples have folders of the same kind.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Folders of tests that belong to no folder of code: texts, suites for interfaces, rules of the house,
# everything that one promise of a package has to hold for, and devices that are not there.
FREE = {"golden", "contracts", "hostile", "house", "matrix", "pretended_cuda", "gpu"}
MIRRORS = (
    ("src/shorthaul", "tests"),
    ("benchmarks", "tests/benchmarks"),
    ("examples", "tests/examples"),
)


def has_code(path: Path) -> bool:
    """Whether a module does anything: more than docstrings, imports and plain names."""
    defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(each, defining) for each in ast.walk(ast.parse(path.read_text())))


def find_untested_folders(root: Path) -> list[str]:
    """Folders of the package with code for which there is no folder with tests."""
    source = root / "src/shorthaul"
    folders = {path.parent for path in source.rglob("*.py") if has_code(path)}
    return [
        f"{folder.relative_to(root)} has no tests in tests/{folder.relative_to(source)}"
        for folder in sorted(folders)
        if not any((root / "tests" / folder.relative_to(source)).glob("test_*.py"))
    ]


def find_stray_tests(root: Path) -> list[str]:
    """Tests in folders that mirror nothing."""
    problems = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        if FREE.intersection(path.relative_to(root / "tests").parent.parts):
            continue
        code, tests = next(
            each for each in reversed(MIRRORS) if path.is_relative_to(root / each[1])
        )
        folder = root / code / path.parent.relative_to(root / tests)
        if not any(folder.rglob("*.py")):
            problems.append(f"{path.relative_to(root)} mirrors no folder in {code}")
    return problems


def test_every_folder_has_tests() -> None:
    assert find_untested_folders(ROOT) == []


def test_every_test_has_a_folder() -> None:
    assert find_stray_tests(ROOT) == []


def _write(root: Path, *names: str, text: str = "def work(): ...\n") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_an_untested_folder_is_found(tmp_path: Path) -> None:
    _write(tmp_path, "src/shorthaul/jit/kernel.py", "src/shorthaul/meter.py", "tests/test_meter.py")
    assert find_untested_folders(tmp_path) == ["src/shorthaul/jit has no tests in tests/jit"]


def test_a_folder_that_only_gathers_names_needs_no_tests(tmp_path: Path) -> None:
    text = '"""Words."""\nfrom shorthaul.jit.kernel import Kernel\n__all__ = ["Kernel"]\n'
    _write(tmp_path, "src/shorthaul/jit/__init__.py", text=text)
    assert find_untested_folders(tmp_path) == []
    _write(tmp_path, "src/shorthaul/jit/__init__.py", text=text + "def work(): ...\n")
    assert len(find_untested_folders(tmp_path)) == 1


def test_a_stray_test_is_found(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "src/shorthaul/jit/kernel.py",
        "benchmarks/measure.py",
        "tests/jit/test_anything.py",
        "tests/jit/cache/test_disk.py",
        "tests/benchmarks/test_measure.py",
        "tests/house/test_anything.py",
        "tests/jit/matrix/test_anything.py",
    )
    assert find_stray_tests(tmp_path) == [
        "tests/jit/cache/test_disk.py mirrors no folder in src/shorthaul"
    ]
