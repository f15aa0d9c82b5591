"""Signs to look at: packages, modules and functions that grew large.

What was large already is recorded beside this file. `python -m tests.house.sizes` records anew.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shorthaul"
RECORD = Path(__file__).with_name("sizes.txt")

MOST_MODULES = 12
MOST_MODULE_LINES = 400
MOST_FUNCTION_LINES = 60


def measure(source: Path) -> dict[str, int]:
    """Every package, module and function in `source` that is large, with its size."""
    large: dict[str, int] = {}
    for folder in sorted({path.parent for path in source.rglob("*.py")} - {source}):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(modules) > MOST_MODULES:
            large[f"modules in {folder.relative_to(source)}"] = len(modules)
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source)
        text = path.read_text()
        lines = len(text.splitlines()) - count_docstring_lines(ast.parse(text))
        if lines > MOST_MODULE_LINES:
            large[f"lines of {name}"] = lines
        large |= {f"lines of {name}:{function}": size for function, size in find_large(path)}
    return large


def count_docstring_lines(tree: ast.AST) -> int:
    """The lines of all docstrings: what explains the arguments shall not be short for this rule."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    words = [
        each.body[0]
        for each in ast.walk(tree)
        if isinstance(each, documented) and ast.get_docstring(each) is not None
    ]
    return sum((each.end_lineno or each.lineno) - each.lineno + 1 for each in words)


def find_large(path: Path) -> list[tuple[str, int]]:
    """Each function with more lines than it should have; its docstring does not count."""
    large = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - count_docstring_lines(node)
            if lines > MOST_FUNCTION_LINES:
                large.append((node.name, lines))
    return large


def read_record(path: Path = RECORD) -> dict[str, int]:
    """The sizes that were there when the rule began to hold, or that have fallen since."""
    pairs = (line.rpartition(": ") for line in path.read_text().splitlines())
    return {name: int(size) for name, _, size in pairs}


def compare(found: dict[str, int], recorded: dict[str, int]) -> list[str]:
    """What grew, and what fell and must be recorded so that it does not grow again."""
    problems = []
    for name, size in found.items():
        most = recorded.get(name)
        if most is None:
            problems.append(f"{name}: {size}, which is too large: divide it along the flow")
        elif size > most:
            problems.append(f"{name}: {size}, and {most} are recorded: it may fall, not grow")
    for name, most in recorded.items():
        if found.get(name, 0) < most:
            problems.append(
                f"{name}: {found.get(name, 'small now')}, but {most} are recorded: "
                "run python -m tests.house.sizes"
            )
    return problems


if __name__ == "__main__":
    RECORD.write_text("".join(f"{name}: {size}\n" for name, size in measure(SOURCE).items()))
