"""Imports point one way: the folders are the data flow, and nothing reaches back up it.

docs/how-it-flows.md tells the order in words. A new package gets a place here and there.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shorthaul"

# A package may import those of the lines above its own.
LAYERS = (
    (
        "dtypes",
        "units",
        "closing",
        "host_memory",
        "whole_file",
        "errors",
        "settings",
        "announcements",
        "fallbacks",
        "interrupts",
        "metric_formats",
        "report_table",
        "meter",
        "explain",
        "module_swap",
        "pages",
    ),
    ("jit", "allocator", "storage"),
    ("tensors", "graphs", "datasets"),
    ("relational", "offload", "conv"),
    ("distributed",),
    ("advice",),
    ("integrations",),
    ("cli",),
    ("__main__",),
)
# On its own line, a package may import only these.
NEIGHBORS = {
    "errors": {"units"},
    "dtypes": {"errors"},
    "settings": {"errors", "host_memory", "units"},
    "meter": {"interrupts", "metric_formats", "units"},
    "explain": {"errors"},
    "pages": {"errors"},
    "announcements": {"settings"},
    "datasets": {"graphs", "tensors"},  # some are graphs, and one is written to disk
    "graphs": {"tensors"},  # features, and indexes on disk, are tables of rows
    "allocator": {"jit"},  # its pool is compiled against PyTorch's headers
    "storage": {"jit"},  # the io_uring engine's ring is a generated kernel
}
# The catalog imports everything, so only what nothing imports may import it.
MAY_IMPORT_CATALOG = {"cli", "__main__"}


@dataclass(frozen=True)
class Import:
    """One import of one module of the package by another."""

    module: str  # dotted, without the package's own name: "jit.kernel", "" for the catalog
    target: str
    line: int
    is_at_import_time: bool


def read_imports(source: Path) -> list[Import]:
    """Every import between modules of the package in `source`, also the ones inside functions."""
    modules = {_dotted(path, source) for path in source.rglob("*.py")}
    found = []
    for path in sorted(source.rglob("*.py")):
        module = _dotted(path, source)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tree = ast.parse(path.read_text(), str(path))
        for node, is_at_import_time in _import_nodes(tree, True):
            for name in _imported_names(node, source.name, package):
                target = _longest_module(name, modules)
                if target != module:
                    found.append(Import(module, target, node.lineno, is_at_import_time))
    return found


def _dotted(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import_nodes(node: ast.AST, is_at_import_time: bool) -> Iterator[tuple[ast.stmt, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_at_import_time
        is_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_for_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _import_nodes(child, is_at_import_time and not (is_later or is_for_checkers))


def _imported_names(node: ast.stmt, root: str, package: str) -> Iterator[str]:
    """The names that an import statement may bring in, dotted, without the package's own name."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = [root, *package.split(".")] if package else [root]
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
        names = [f"{base}.{alias.name}" for alias in node.names]
    for name in names:
        head, _, rest = name.partition(".")
        if head == root:
            yield rest


def _longest_module(name: str, modules: set[str]) -> str:
    while name not in modules and name:
        name = name.rpartition(".")[0]
    return name


def find_wrong_imports(source: Path) -> list[str]:
    """Every import that points against the order, with the reason."""
    rank = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    problems = [
        f"{name} has no place in the order of packages"
        for name in sorted(
            {_dotted(path, source).partition(".")[0] for path in source.rglob("*.py")}
        )
        if name and name not in rank
    ]
    for each in read_imports(source):
        one, other = each.module.partition(".")[0], each.target.partition(".")[0]
        where = f"{each.module}:{each.line}"
        if not one or one == other or not {one, other} <= {"", *rank}:
            continue
        if not other:
            if one not in MAY_IMPORT_CATALOG:
                problems.append(f"{where} imports the catalog, which imports everything")
        elif rank[other] > rank[one]:
            problems.append(f"{where} imports {each.target}, which lies after it")
        elif rank[other] == rank[one] and other not in NEIGHBORS.get(one, set()):
            problems.append(f"{where} imports {each.target}, which lies beside it")
    return problems


def find_import_cycle(source: Path) -> list[str]:
    """Modules that import each other in a circle while they are loaded; empty when none do."""
    targets: dict[str, set[str]] = {}
    for each in read_imports(source):
        if each.is_at_import_time and each.module:
            targets.setdefault(each.module, set()).add(each.target)
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            for target in sorted(targets.get(module, ())):
                circle = walk(target, [*path, module])
                if circle:
                    return circle
            done.add(module)
        return []

    for module in sorted(targets):
        circle = walk(module, [])
        if circle:
            return circle
    return []


def test_imports_point_one_way() -> None:
    problems = find_wrong_imports(SOURCE)
    assert not problems, "\n".join(problems)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_import_cycle(SOURCE) == []


def test_the_rules_are_about_this_package() -> None:
    found = {(each.module, each.target) for each in read_imports(SOURCE)}
    assert ("settings", "errors") in found
    assert ("", "meter") in found


def _write(source: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            {"jit/kernel.py": "", "errors.py": "import shorthaul.jit.kernel\n"},
            "errors:1 imports jit.kernel, which lies after it",
        ),
        (
            {
                "conv/layer.py": "",
                "jit/kernel.py": "def later():\n    from shorthaul.conv import layer\n",
            },
            "jit.kernel:2 imports conv.layer, which lies after it",
        ),
        (
            {"storage/file.py": "", "jit/kernel.py": "from ..storage.file import open_file\n"},
            "jit.kernel:1 imports storage.file, which lies beside it",
        ),
        (
            {"conv/layer.py": "", "offload/spool.py": "from shorthaul.conv.layer import Layer\n"},
            "offload.spool:1 imports conv.layer, which lies beside it",
        ),
        (
            {"__init__.py": "", "jit/kernel.py": "import shorthaul as sh\n"},
            "jit.kernel:1 imports the catalog, which imports everything",
        ),
        ({"helpful.py": ""}, "helpful has no place in the order of packages"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    assert find_wrong_imports(_write(tmp_path / "shorthaul", files)) == [problem]


def test_right_imports_are_left_alone(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from shorthaul import errors\nfrom shorthaul.cli import main\n",
        "errors.py": "import os\nimport torch\n",
        "jit/__init__.py": "from .kernel import Kernel\n",
        "jit/kernel.py": "from shorthaul import errors\nfrom shorthaul.errors import Error\n",
        "storage/ring.py": "from shorthaul.jit import Kernel\n",
        "cli/__init__.py": "from shorthaul import __version__\n",
    }
    assert find_wrong_imports(_write(tmp_path / "shorthaul", files)) == []


def test_a_circle_is_found_unless_one_import_waits(tmp_path: Path) -> None:
    files = {
        "jit/__init__.py": "from shorthaul.jit.kernel import Kernel\n",
        "jit/kernel.py": "from shorthaul.jit.source import Source\n",
        "jit/source.py": "from shorthaul.jit import Kernel\n",
    }
    source = _write(tmp_path / "shorthaul", files)
    assert find_import_cycle(source) == ["jit", "jit.kernel", "jit.source", "jit"]
    _write(source, {"jit/source.py": "def later():\n    from shorthaul.jit import Kernel\n"})
    assert find_import_cycle(source) == []
