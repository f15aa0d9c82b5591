"""Signs to look at: packages, modules and functions that grew large."""

import ast
from pathlib import Path

MOST_MODULES = 10
MOST_MODULE_LINES = 400
MOST_FUNCTION_LINES = 60


def list_signs(source: Path) -> list[str]:
    """One line for each package, module and function in `source` that is large."""
    signs = []
    for folder in sorted({path.parent for path in source.rglob("*.py")} - {source}):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(modules) > MOST_MODULES:
            name = folder.relative_to(source)
            signs.append(f"package {name} has {len(modules)} modules ({MOST_MODULES})")
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source)
        lines = len(path.read_text().splitlines())
        if lines > MOST_MODULE_LINES:
            signs.append(f"module {name} has {lines} lines ({MOST_MODULE_LINES})")
        signs += [
            f"function {name}:{function} has {lines} lines ({MOST_FUNCTION_LINES})"
            for function, lines in find_large(path)
        ]
    return signs


def find_large(path: Path) -> list[tuple[str, int]]:
    """Each function with more lines than it should have; its docstring does not count."""
    large = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                words = node.body[0]
                lines -= (words.end_lineno or words.lineno) - words.lineno + 1
            if lines > MOST_FUNCTION_LINES:
                large.append((node.name, lines))
    return large
