"""What begins with an underscore belongs to the folder that makes it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_imports import SOURCE


def find_reached_into(source: Path) -> list[str]:
    """Private attributes that are used in a folder, and made in others of ours alone."""
    made: dict[Path, set[str]] = defaultdict(set)
    used: list[tuple[Path, ast.Attribute]] = []
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            made[path.parent].update(_made_by(node))
            if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_own(node):
                used.append((path, node))
    everywhere = set().union(*made.values())
    return [
        f"{path.relative_to(source)}:{node.lineno}: {ast.unparse(node)}"
        for path, node in used
        if node.attr in everywhere and node.attr not in made[path.parent]
    ]


def _made_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
        yield node.attr
    for each in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each.name
        elif isinstance(each, ast.AnnAssign | ast.Assign):
            targets = [each.target] if isinstance(each, ast.AnnAssign) else each.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))


# Of named tuples and modules: theirs, though some of our classes have such names, too.
OTHERS = frozenset({"_replace", "_fields", "_parameters", "_buffers", "_modules"})


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OTHERS


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_no_folder_reaches_into_what_another_keeps_to_itself() -> None:
    assert find_reached_into(SOURCE) == []


def test_one_that_does_is_found(tmp_path: Path) -> None:
    for folder, text in (
        ("rows", "class Rows:\n    def __init__(self):\n        self._table = []\n"),
        ("graphs", "def read(rows):\n    return rows._table, rows._version\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(text)
    assert find_reached_into(tmp_path) == ["graphs/module.py:2: rows._table"]
