"""Size is a sign to look, not a crime: the report at the end of a test run names the large ones.

Nothing fails because of it; what is tested is that the report is right.
"""

from pathlib import Path

from tests.house.sizes import find_large, list_signs


def _write(path: Path, lines: int, function_lines: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    function = "def work():\n" + "    call()\n" * (function_lines - 1)
    padding = "value = 1\n" * (lines - function_lines)
    path.write_text(
        function.replace("def work():\n", "def work(): ...\n", function_lines == 1) + padding
    )


def test_a_small_package_shows_no_signs(tmp_path: Path) -> None:
    _write(tmp_path / "jit" / "kernel.py", lines=400, function_lines=60)
    assert list_signs(tmp_path) == []


def test_large_modules_functions_and_packages_are_named(tmp_path: Path) -> None:
    _write(tmp_path / "jit" / "kernel.py", lines=401, function_lines=61)
    for number in range(11):
        _write(tmp_path / "conv" / f"part{number}.py", lines=2)
    (tmp_path / "conv" / "__init__.py").touch()
    assert list_signs(tmp_path) == [
        "package conv has 11 modules (10)",
        "module jit/kernel.py has 401 lines (400)",
        "function jit/kernel.py:work has 61 lines (60)",
    ]


def test_a_function_is_measured_without_its_docstring(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text('def work():\n    """Words.\n' + "\n" * 60 + '    """\n    call()\n')
    assert find_large(path) == []
