"""Tests mirror the source: whoever knows where a thing is knows where its tests are.

`src/shorthaul/a/b.py` is tested in `tests/a/test_b.py`, or in files `tests/a/test_b_<what>.py` where
one grew too long. A package as a whole is tested in `tests/a/test_a.py`. Benchmarks and examples
have folders of the same kind.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Folders of tests that belong to no module: texts, suites for interfaces, rules of the house, and
# everything that one promise of a package has to hold for.
FREE = {"golden", "contracts", "hostile", "house", "matrix"}
# Folder of code -> folder of its tests, and whether every module of it must have tests.
MIRRORS = (
    ("src/shorthaul", "tests", True),
    ("benchmarks", "tests/benchmarks", False),
    ("examples", "tests/examples", False),
)


def has_code(path: Path) -> bool:
    """Whether a module does anything: more than docstrings, imports and plain names."""
    defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(each, defining) for each in ast.walk(ast.parse(path.read_text())))


def name_of_tests(module: Path) -> str:
    """The name of the file that tests `module`."""
    stem = module.parent.name if module.name == "__init__.py" else module.stem.strip("_")
    return f"test_{stem}"


def find_untested_modules(root: Path) -> list[str]:
    """Modules with code that have no tests of their own."""
    problems = []
    for code, tests, must_have in MIRRORS:
        for module in sorted((root / code).rglob("*.py")) if must_have else ():
            folder = root / tests / module.parent.relative_to(root / code)
            name = name_of_tests(module)
            is_tested = (folder / f"{name}.py").exists() or any(folder.glob(f"{name}_*.py"))
            if has_code(module) and not is_tested:
                expected = (folder / f"{name}.py").relative_to(root)
                problems.append(f"{module.relative_to(root)} has no {expected}")
    return problems


def find_stray_tests(root: Path) -> list[str]:
    """Tests that belong to no module."""
    problems = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        relative = path.relative_to(root / "tests")
        if FREE.intersection(relative.parent.parts):
            continue
        code, tests, _ = next(
            each for each in reversed(MIRRORS) if path.is_relative_to(root / each[1])
        )
        folder = root / code / path.parent.relative_to(root / tests)
        names = {name_of_tests(module) for module in folder.glob("*.py")}
        if not any(path.stem == name or path.stem.startswith(f"{name}_") for name in names):
            problems.append(f"{path.relative_to(root)} belongs to no module in {code}")
    return problems


def test_every_module_has_tests() -> None:
    problems = find_untested_modules(ROOT)
    assert not problems, "\n".join(problems)


def test_every_test_has_a_module() -> None:
    problems = find_stray_tests(ROOT)
    assert not problems, "\n".join(problems)


def _write(root: Path, *names: str, text: str = "def work(): ...\n") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_an_untested_module_is_found(tmp_path: Path) -> None:
    _write(tmp_path, "src/shorthaul/jit/kernel.py", "src/shorthaul/meter.py", "tests/test_meter.py")
    assert find_untested_modules(tmp_path) == [
        "src/shorthaul/jit/kernel.py has no tests/jit/test_kernel.py"
    ]


@pytest.mark.parametrize("name", ["tests/jit/test_kernel.py", "tests/jit/test_kernel_calls.py"])
def test_a_module_is_tested_in_one_file_or_in_several(tmp_path: Path, name: str) -> None:
    _write(tmp_path, "src/shorthaul/jit/kernel.py", name)
    assert find_untested_modules(tmp_path) == []
    assert find_stray_tests(tmp_path) == []


def test_a_module_that_only_gathers_names_needs_no_tests(tmp_path: Path) -> None:
    text = '"""Words."""\nfrom shorthaul.jit.kernel import Kernel\n__all__ = ["Kernel"]\n'
    _write(tmp_path, "src/shorthaul/jit/__init__.py", text=text)
    assert find_untested_modules(tmp_path) == []
    _write(tmp_path, "src/shorthaul/jit/__init__.py", text=text + "def work(): ...\n")
    assert find_untested_modules(tmp_path) == [
        "src/shorthaul/jit/__init__.py has no tests/jit/test_jit.py"
    ]


def test_a_stray_test_is_found(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "src/shorthaul/jit/kernel.py",
        "src/shorthaul/jit/__init__.py",
        "benchmarks/measure.py",
        "tests/jit/test_kernel.py",
        "tests/jit/test_jit.py",
        "tests/jit/test_kernels.py",
        "tests/test_kernel.py",
        "tests/benchmarks/test_measure.py",
        "tests/benchmarks/test_kernel.py",
        "tests/house/test_anything.py",
        "tests/jit/matrix/test_anything.py",
        "tests/jit/drawn_kernels.py",
    )
    assert find_stray_tests(tmp_path) == [
        "tests/benchmarks/test_kernel.py belongs to no module in benchmarks",
        "tests/jit/test_kernels.py belongs to no module in src/shorthaul",
        "tests/test_kernel.py belongs to no module in src/shorthaul",
    ]
