"""A real SQLite database that every machine can make: what the Python standard library defines and calls.

Modules define classes, classes and modules define functions, functions call functions. While a module
runs, its definitions come into being from the top to the bottom: a line is a moment.
"""

from __future__ import annotations

import ast
import sqlite3
import sys
import sysconfig
from pathlib import Path

SCHEMA = """
CREATE TABLE modules (id INTEGER PRIMARY KEY, name TEXT, lines INTEGER);
CREATE TABLE classes (
    id INTEGER PRIMARY KEY, module INTEGER REFERENCES modules(id), name TEXT, bases INTEGER, line INTEGER);
CREATE TABLE functions (
    id INTEGER PRIMARY KEY, module INTEGER REFERENCES modules(id), class INTEGER REFERENCES classes(id),
    name TEXT, arguments INTEGER, lines INTEGER, is_private INTEGER, has_docstring INTEGER, line INTEGER);
CREATE TABLE calls (
    caller INTEGER REFERENCES functions(id), callee INTEGER REFERENCES functions(id), line INTEGER);
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def write_database(path: Path, most_modules: int = 60) -> None:
    """Read the first modules of the standard library, and write what is in them."""
    folder = Path(sysconfig.get_path("stdlib"))
    known = {each for each in sys.stdlib_module_names if not each.startswith("_")}
    files = sorted(each for each in folder.glob("*.py") if each.stem in known)
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        for module, file in enumerate(files[:most_modules]):
            text = file.read_text(encoding="utf-8", errors="replace")
            row = (module, file.stem, text.count("\n"))
            database.execute("INSERT INTO modules VALUES (?, ?, ?)", row)
            _write_module(database, module, ast.parse(text))
    database.close()


def _write_module(database: sqlite3.Connection, module: int, tree: ast.Module) -> None:
    known: dict[str, int] = {}
    bodies: list[tuple[int, Function]] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            row = (module, node.name, len(node.bases), node.lineno)
            query = "INSERT INTO classes (module, name, bases, line) VALUES (?, ?, ?, ?)"
            number = database.execute(query, row).lastrowid
            for each in node.body:
                if isinstance(each, Function):
                    bodies.append((_write_function(database, module, number, each), each))
                    known[each.name] = bodies[-1][0]
        elif isinstance(node, Function):
            bodies.append((_write_function(database, module, None, node), node))
            known[node.name] = bodies[-1][0]
    for number, body in bodies:
        for call in ast.walk(body):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "id", getattr(call.func, "attr", None))
                if name in known:
                    row = (number, known[name], call.lineno)
                    database.execute("INSERT INTO calls VALUES (?, ?, ?)", row)


def _write_function(
    database: sqlite3.Connection, module: int, owner: int | None, node: Function
) -> int:
    arguments = len(node.args.args) + len(node.args.kwonlyargs)
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    has_docstring = ast.get_docstring(node) is not None
    row = (
        module,
        owner,
        node.name.replace("_", " "),
        arguments,
        lines,
        node.name.startswith("_"),
        has_docstring,
        node.lineno,
    )
    query = (
        "INSERT INTO functions (module, class, name, arguments, lines, is_private, has_docstring, line) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    )
    return int(database.execute(query, row).lastrowid or 0)
