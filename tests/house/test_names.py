"""Names say what a thing is: no `utils`, `common`, `helpers`, `manager`, `new_`, `_v2`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "benchmarks", "examples", "tests")

# Words within a name, as snake_case or CamelCase sets them apart.
FORBIDDEN = re.compile(r"^(utils?|common|helpers?|managers?|misc)$")
FORBIDDEN_ENDS = re.compile(r"^new_|_v\d+$|_(old|final)$")


def find_forbidden_names(root: Path) -> list[str]:
    """Files, classes, functions and variables with a name that says nothing."""
    problems = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            where = path.relative_to(root)
            if "__pycache__" not in where.parts and is_forbidden(path.stem):
                problems.append(f"{where}: the file's name")
            if path.suffix == ".py":
                problems += [
                    f"{where}:{line}: {name}"
                    for name, line in _defined_names(ast.parse(path.read_text()))
                    if is_forbidden(name)
                ]
    return problems


def is_forbidden(name: str) -> bool:
    """Whether a word of `name` is one that says nothing."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return bool(FORBIDDEN_ENDS.search(snake)) or any(map(FORBIDDEN.match, snake.split("_")))


def _defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def test_no_name_says_nothing() -> None:
    problems = find_forbidden_names(ROOT)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "name",
    [
        "utils",
        "string_utils",
        "common",
        "test_helpers",
        "BufferManager",
        "manager",
        "new_tensor",
        "gather_v2",
        "Util",
        "plan_old",
    ],
)
def test_a_forbidden_name_is_known(name: str) -> None:
    assert is_forbidden(name)


@pytest.mark.parametrize(
    "name", ["renew", "newest_run", "commonest", "contextmanager", "conv2", "utility", "_v", "fold"]
)
def test_other_names_are_allowed(name: str) -> None:
    assert not is_forbidden(name)


def test_forbidden_names_are_found_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "src" / "common").mkdir(parents=True)
    (tmp_path / "src" / "kernel.py").write_text(
        "class CacheManager:\n    def run(self, new_size): ...\nplan_v2 = 1\nplan = common.plan()\n"
    )
    assert find_forbidden_names(tmp_path) == [
        "src/common: the file's name",
        "src/kernel.py:1: CacheManager",
        "src/kernel.py:3: plan_v2",
        "src/kernel.py:2: new_size",
    ]
