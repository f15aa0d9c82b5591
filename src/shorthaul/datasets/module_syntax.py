"""One source file -> what it defines, imports and refers to, as plain names.

A reference is still a dotted name here (`os.path.join`, `self.close`); `name_resolution` finds out
what it means. What a function returns or yields, and its return annotation, are not looked at: they
are the label (see `return_kinds`), so nothing inside them becomes a reference or a trait.
"""

# ruff: noqa: ARG002, N802, N815 - methods are named after the syntax nodes they visit, as in `ast`

from __future__ import annotations

import ast
import warnings
from collections import Counter
from dataclasses import dataclass, field

from shorthaul.datasets.return_kinds import expression_kind

SUPER = "super()"  # the head of a dotted name that starts with a call of super
UNKNOWN = "?"  # the head of a dotted name that starts with any other expression

TRAITS = (
    "is a method",
    "is nested",
    "is asynchronous",
    "parameters",
    "parameters with a default",
    "takes any positional",
    "takes any keyword",
    "decorators",
    "branches",
    "loops",
    "handlers",
    "contexts",
    "assignments",
    "assertions",
    "bases",
    "members",
)
# Statements that are counted where they stand. `return` and `pass` are not among them.
_COUNTED: dict[type[ast.AST], str] = {
    ast.If: "branches",
    ast.For: "loops",
    ast.AsyncFor: "loops",
    ast.While: "loops",
    ast.ExceptHandler: "handlers",
    ast.With: "contexts",
    ast.AsyncWith: "contexts",
    ast.Assign: "assignments",
    ast.AugAssign: "assignments",
    ast.AnnAssign: "assignments",
    ast.Assert: "assertions",
}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Reference:
    """`owner`, a module, class or function, does `verb` to what `dotted` means in its scope."""

    owner: str
    verb: str
    dotted: tuple[str, ...]


@dataclass
class Scope:
    """What a name can mean inside one module, class or function."""

    kind: str
    qualified_name: str
    name: str
    parent: str | None
    traits: Counter[str] = field(default_factory=Counter)
    returned: set[str] = field(default_factory=set)  # kinds, the label's source and no one else's
    members: dict[str, str] = field(default_factory=dict)  # definitions by their short names
    bound: set[str] = field(default_factory=set)  # parameters and variables
    shared: set[str] = field(default_factory=set)  # declared global or nonlocal


@dataclass
class ModuleSyntax:
    """Everything that one file says; `scopes` has the module itself and all its definitions."""

    name: str
    scopes: dict[str, Scope]
    references: list[Reference] = field(default_factory=list)
    imported_modules: list[str] = field(default_factory=list)
    imported_names: dict[str, str] = field(default_factory=dict)  # local name -> absolute name
    star_imports: list[str] = field(default_factory=list)


def parse_module(name: str, content: bytes, *, is_package: bool) -> ModuleSyntax:
    """Read one file. `SyntaxError` and `ValueError` come from `ast.parse` as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in the library are not the caller's business
        tree = ast.parse(content)
    syntax = ModuleSyntax(name, {name: Scope("module", name, name, None)})
    package = name if is_package else name.rpartition(".")[0]
    _Reader(syntax, package).visit_all(tree.body, syntax.scopes[name])
    return syntax


def dotted_name(expression: ast.expr) -> tuple[str, ...] | None:
    """`a.b.c` as its parts; a head that is not a name becomes `SUPER` or `UNKNOWN`."""
    if isinstance(expression, ast.Name):
        return (expression.id,)
    if not isinstance(expression, ast.Attribute):
        return None
    inner = expression.value
    if isinstance(inner, ast.Call) and dotted_name(inner.func) == ("super",):
        return (SUPER, expression.attr)
    return (*(dotted_name(inner) or (UNKNOWN,)), expression.attr)


class _Reader:
    """Walks statements and expressions; each node type that says something has its own method."""

    def __init__(self, syntax: ModuleSyntax, package: str) -> None:
        self.syntax, self.package = syntax, package

    def visit_all(self, nodes: list[ast.stmt] | list[ast.expr], scope: Scope) -> None:
        for node in nodes:
            self.visit(node, scope)

    def visit(self, node: ast.AST, scope: Scope) -> None:
        counted = _COUNTED.get(type(node))
        if counted is not None:
            scope.traits[counted] += 1
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is not None:
            method(node, scope)
        else:
            for child in ast.iter_child_nodes(node):
                self.visit(child, scope)

    def refer(self, scope: Scope, verb: str, dotted: tuple[str, ...] | None) -> None:
        if dotted is not None:
            self.syntax.references.append(Reference(scope.qualified_name, verb, dotted))

    # The label: noted, and not walked into.

    def visit_Return(self, node: ast.Return, scope: Scope) -> None:
        if node.value is not None:
            scope.returned.add(expression_kind(node.value))
            if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node.value)):
                scope.returned.add("items in turn")

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom, scope: Scope) -> None:
        scope.returned.add("items in turn")

    visit_YieldFrom = visit_Yield

    # Definitions.

    def visit_FunctionDef(self, node: FunctionNode, scope: Scope) -> None:
        inner = self.define("function", node.name, scope)
        inner.traits.update(_signature_traits(node, scope))
        self.decorate(node.decorator_list, inner, scope)
        self.visit(node.args, inner)
        self.visit_all(node.body, inner)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        inner = self.define("class", node.name, scope)
        inner.traits.update({"bases": len(node.bases), "members": len(node.body)})
        self.decorate(node.decorator_list, inner, scope)
        for base in node.bases:
            self.refer(inner, "inherits", dotted_name(base))
        for keyword in node.keywords:
            self.visit(keyword, inner)
        self.visit_all(node.body, inner)

    def define(self, kind: str, name: str, scope: Scope) -> Scope:
        # The colon keeps the function `main` of a package apart from its submodule `main`.
        mark = ":" if scope.kind == "module" else "."
        qualified = base = f"{scope.qualified_name}{mark}{name}"
        copies = 1
        while qualified in self.syntax.scopes:  # another branch of an `if`, or a property's setter
            copies += 1
            qualified = f"{base}#{copies}"
        inner = Scope(kind, qualified, name, scope.qualified_name)
        self.syntax.scopes[qualified] = inner
        scope.members.setdefault(name, qualified)
        return inner

    def decorate(self, decorators: list[ast.expr], inner: Scope, scope: Scope) -> None:
        for decorator in decorators:
            if isinstance(decorator, ast.Call):
                self.visit_all(decorator.args, scope)
                decorator = decorator.func
            self.refer(inner, "decorated by", dotted_name(decorator))

    def visit_arg(self, node: ast.arg, scope: Scope) -> None:
        if scope.kind == "function":
            scope.bound.add(node.arg)
        self.refer(scope, "takes", (node.arg,))
        if node.annotation is not None:
            self.visit(node.annotation, scope)

    # Imports.

    def visit_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            self.syntax.imported_modules.append(alias.name)
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            self.syntax.imported_names.setdefault(alias.asname or target, target)

    def visit_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = node.module or ""
        if node.level:
            parts = self.package.split(".")
            parts = parts[: len(parts) - node.level + 1]
            module = ".".join([*parts, module] if module else parts)
        self.syntax.imported_modules.append(module)
        for alias in node.names:
            if alias.name == "*":
                self.syntax.star_imports.append(module)
            else:
                target = f"{module}.{alias.name}"
                self.syntax.imported_names.setdefault(alias.asname or alias.name, target)

    # Statements and expressions.

    def visit_Global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        scope.shared.update(node.names)

    visit_Nonlocal = visit_Global

    def visit_Raise(self, node: ast.Raise, scope: Scope) -> None:
        raised = node.exc
        if isinstance(raised, ast.Call):
            self.refer(scope, "raises", dotted_name(raised.func))
            self.visit_arguments_of(raised, scope)
        elif raised is not None:
            self.refer(scope, "raises", dotted_name(raised))
        if node.cause is not None:
            self.visit(node.cause, scope)

    def visit_ExceptHandler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        caught = node.type
        for each in caught.elts if isinstance(caught, ast.Tuple) else [caught]:
            if each is not None:
                self.refer(scope, "catches", dotted_name(each))
        if node.name is not None and scope.kind == "function":
            scope.bound.add(node.name)
        self.visit_all(node.body, scope)

    def visit_Expr(self, node: ast.Expr, scope: Scope) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            self.call(value, "runs", scope)  # the caller drops the result
        else:
            self.visit(value, scope)

    def visit_Call(self, node: ast.Call, scope: Scope) -> None:
        self.call(node, "calls", scope)

    def call(self, node: ast.Call, verb: str, scope: Scope) -> None:
        self.refer(scope, verb, dotted_name(node.func))
        if isinstance(node.func, ast.Attribute):
            self.visit(node.func.value, scope)
        elif not isinstance(node.func, ast.Name):
            self.visit(node.func, scope)
        self.visit_arguments_of(node, scope)

    def visit_arguments_of(self, node: ast.Call, scope: Scope) -> None:
        self.visit_all(node.args, scope)
        for keyword in node.keywords:
            self.visit(keyword, scope)

    def visit_keyword(self, node: ast.keyword, scope: Scope) -> None:
        if node.arg is not None:
            self.refer(scope, "passes", (node.arg,))
        self.visit(node.value, scope)

    def visit_Attribute(self, node: ast.Attribute, scope: Scope) -> None:
        verb = "uses" if isinstance(node.ctx, ast.Load) else "writes"
        self.refer(scope, verb, dotted_name(node))
        self.visit(node.value, scope)

    def visit_Name(self, node: ast.Name, scope: Scope) -> None:
        if isinstance(node.ctx, ast.Load):
            self.refer(scope, "uses", (node.id,))
            return
        scope.bound.add(node.id)
        # A name assigned in a class body is an attribute of the class.
        dotted = (UNKNOWN, node.id) if scope.kind == "class" else (node.id,)
        self.refer(scope, "writes", dotted)


def _signature_traits(node: FunctionNode, scope: Scope) -> dict[str, int]:
    arguments = node.args
    with_default = [*arguments.defaults, *(each for each in arguments.kw_defaults if each)]
    return {
        "is a method": scope.kind == "class",
        "is nested": scope.kind == "function",
        "is asynchronous": isinstance(node, ast.AsyncFunctionDef),
        "parameters": len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs),
        "parameters with a default": len(with_default),
        "takes any positional": arguments.vararg is not None,
        "takes any keyword": arguments.kwarg is not None,
        "decorators": len(node.decorator_list),
    }
