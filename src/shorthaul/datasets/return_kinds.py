"""What a function gives back, read from its `return` and `yield` statements alone.

This is the label of `python_graph`. It must depend on nothing else of a function, because the graph
leaves exactly these statements out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

RETURN_KINDS = ("nothing", "object", "truth", "number", "text", "collection", "items in turn")

_BUILTIN_KINDS = (
    dict.fromkeys(
        ("all", "any", "bool", "callable", "hasattr", "isinstance", "issubclass"), "truth"
    )
    | dict.fromkeys(("abs", "float", "hash", "id", "int", "len", "ord", "round", "sum"), "number")
    | dict.fromkeys(("ascii", "bytes", "chr", "format", "hex", "repr", "str"), "text")
    | dict.fromkeys(("dict", "frozenset", "list", "set", "sorted", "tuple"), "collection")
)
_METHOD_KINDS = (
    dict.fromkeys(("endswith", "isdigit", "issubset", "startswith"), "truth")
    | dict.fromkeys(("count", "find", "rfind"), "number")
    | dict.fromkeys(("decode", "encode", "format", "join", "lower", "replace", "strip"), "text")
)
_COLLECTIONS = (
    ast.List,
    ast.Tuple,
    ast.Dict,
    ast.Set,
    ast.ListComp,
    ast.DictComp,
    ast.SetComp,
)


def return_kind(kinds: Iterable[str]) -> str:
    """What a function gives back, from the kinds of everything it returns or yields.

    >>> return_kind(["nothing", "text"]), return_kind(["number", "text"]), return_kind([])
    ('text', 'object', 'nothing')

    `None` beside another value does not count, and different kinds together are an "object".
    """
    found = set(kinds) - {"nothing"}
    if "items in turn" in found:
        return "items in turn"
    if not found:
        return "nothing"
    return found.pop() if len(found) == 1 else "object"


def expression_kind(value: ast.expr) -> str:
    """The kind of one returned expression, as far as its form tells.

    >>> expression_kind(ast.parse("not self.closed", mode="eval").body)
    'truth'
    """
    if isinstance(value, ast.Constant):
        return _constant_kind(value.value)
    if isinstance(value, ast.Compare):
        return "truth"
    if isinstance(value, ast.UnaryOp):
        return "truth" if isinstance(value.op, ast.Not) else expression_kind(value.operand)
    if isinstance(value, ast.BoolOp):
        return return_kind(expression_kind(each) for each in value.values)
    if isinstance(value, ast.IfExp):
        return return_kind((expression_kind(value.body), expression_kind(value.orelse)))
    if isinstance(value, ast.BinOp):
        return _operation_kind(value)
    if isinstance(value, ast.JoinedStr):
        return "text"
    if isinstance(value, _COLLECTIONS):
        return "collection"
    if isinstance(value, ast.Call):
        return _call_kind(value.func)
    return "object"


def _constant_kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float | complex):
        return "number"
    return "text" if isinstance(value, str | bytes) else "object"


def _operation_kind(value: ast.BinOp) -> str:
    sides = {expression_kind(value.left), expression_kind(value.right)}
    for kind in ("text", "collection", "number"):  # "%d items" % 3 is text, [0] * 3 a collection
        if kind in sides:
            return kind
    return "object"


def _call_kind(called: ast.expr) -> str:
    if isinstance(called, ast.Name):
        return _BUILTIN_KINDS.get(called.id, "object")
    if isinstance(called, ast.Attribute):
        return _METHOD_KINDS.get(called.attr, "object")
    return "object"
