"""Sizes are a ratchet: what is large may become smaller, and nothing else may become large."""

from pathlib import Path

from tests.house.sizes import SOURCE, compare, find_large, measure, read_record


def test_nothing_grew() -> None:
    assert not (problems := compare(measure(SOURCE), read_record())), "\n".join(problems)


def _write(path: Path, lines: int, function_lines: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    function = "def work():\n" + "    call()\n" * (function_lines - 1)
    padding = "value = 1\n" * (lines - function_lines)
    path.write_text(
        function.replace("def work():\n", "def work(): ...\n", function_lines == 1) + padding
    )


def test_a_small_package_is_not_measured(tmp_path: Path) -> None:
    _write(tmp_path / "jit" / "kernel.py", lines=400, function_lines=60)
    assert measure(tmp_path) == {}


def test_large_modules_functions_and_packages_are_measured(tmp_path: Path) -> None:
    _write(tmp_path / "jit" / "kernel.py", lines=401, function_lines=61)
    for number in range(13):
        _write(tmp_path / "conv" / f"part{number}.py", lines=2)
    (tmp_path / "conv" / "__init__.py").touch()
    assert measure(tmp_path) == {
        "modules in conv": 13,
        "lines of jit/kernel.py": 401,
        "lines of jit/kernel.py:work": 61,
    }


def test_a_module_is_measured_without_its_docstrings(tmp_path: Path) -> None:
    path = tmp_path / "jit" / "kernel.py"
    _write(path, lines=400)
    path.write_text('"""Words.\n\nMore."""\n' + path.read_text() + 'def f():\n    """Words."""\n')
    assert measure(tmp_path) == {"lines of jit/kernel.py": 401}  # the line of `def` alone


def test_a_function_is_measured_without_its_docstring(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text('def work():\n    """Words.\n' + "\n" * 60 + '    """\n    call()\n')
    assert find_large(path) == []


def test_growing_is_refused_and_falling_is_recorded(tmp_path: Path) -> None:
    record = tmp_path / "sizes.txt"
    record.write_text("lines of a.py: 500\nlines of b.py: 450\n")
    recorded = read_record(record)
    assert compare({"lines of a.py": 500, "lines of b.py": 450}, recorded) == []
    assert len(compare({"lines of a.py": 501, "lines of b.py": 450}, recorded)) == 1
    assert len(compare({"lines of a.py": 500, "lines of b.py": 440}, recorded)) == 1
    assert len(compare({"lines of a.py": 500}, recorded)) == 1
    assert len(compare({**recorded, "lines of c.py": 401}, recorded)) == 1
